"""Self-test of notebook 01."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "Why does a space at the end of a prompt hurt `The capital of France is `?",
        right=1,
        choices=(
            (
                "The model was trained to ignore prompts that end in a space.",
                "Nothing in it knows about prompts. It saw token 216 in training, mostly before "
                "digits.",
            ),
            (
                "The space belongs to the next word's token, so a lone space says that a digit "
                "follows.",
                "` Paris` brings its own space. SmolLM2's split leaves a single space alone "
                "chiefly before digits, and the model puts more than nine tenths of its "
                "probability on them.",
            ),
            (
                "The space costs one token, and the context is too short.",
                "It does cost one token, but the context holds 8,192.",
            ),
        ),
    ),
    Question(
        "A loader skips all merges. Which measurement shows it?",
        right=2,
        choices=(
            (
                "Decoding the ids of 10,000 texts gives back the same texts.",
                "This passes: single bytes are joined to the same text. A round trip says nothing "
                "about where the text is cut.",
            ),
            (
                "Every id lies inside the vocabulary.",
                "This passes, too: single bytes have ids of their own.",
            ),
            (
                "The ids of a few texts equal ids that are known to be right.",
                "Only a comparison of ids, with an oracle or with stored values, sees the cut.",
            ),
        ),
    ),
    Question(
        "The Chinese sentences have fewer bytes than the English ones and need twice the tokens. "
        "What does that rule out?",
        right=0,
        choices=(
            (
                "That UTF-8's three bytes per character are the whole reason.",
                "With fewer bytes to begin with, the reason must lie in the merges: few of them "
                "join Chinese characters.",
            ),
            (
                "That the tokenizer's training text was mostly English.",
                "It is what the numbers suggest: merges follow what was frequent there.",
            ),
            (
                "That another vocabulary would need fewer tokens.",
                "One that was trained on more Chinese would have merges for it.",
            ),
        ),
    ),
    Question(
        "Why is `lighthouse` cut into `l` and `ighthouse`, though `light` and `house` are tokens?",
        right=1,
        choices=(
            (
                "The tokenizer looks for the longest token at the end of a word.",
                "It looks for no token at all. It replays merges.",
            ),
            (
                "Merges are applied in the order in which they were learnt, and an early one "
                "joined the `t` of `light` to the `h` of `house`.",
                "`t` + `h` is one of the first merges of all. Once it is done there is no way "
                "back, and later merges build on it.",
            ),
            (
                "The word is rare, so it is spelled in bytes.",
                "Two tokens are far from ten bytes; `ighthouse` alone stands for nine of them.",
            ),
        ),
    ),
    Question(
        "A model has written the first three of the four bytes of 🌶. What should the stream show?",
        right=2,
        choices=(
            (
                "One U+FFFD for each byte.",
                "They would have to be taken back when the fourth byte comes.",
            ),
            (
                "A single U+FFFD.",
                "It would be wrong a moment later, and text that was sent cannot be recalled.",
            ),
            (
                "Nothing yet.",
                "The bytes may still become a character. If they never do, the U+FFFD comes as "
                "soon as that is certain, or at the end.",
            ),
        ),
    ),
)
