"""Self-test of notebook 06."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "A model with 32 query heads goes from 32 to 8 key/value heads. What becomes smaller?",
        right=1,
        choices=(
            (
                "The number of queries: 8 heads attend in place of 32.",
                "All 32 query heads stay, each with its own attention weights. Only what they "
                "read is shared.",
            ),
            (
                "The cache, to a quarter, and the k and v projections with it.",
                "The cache holds 2 · L · K · D values per token, and K is divided by 4.",
            ),
            (
                "The matrix of scores, to a quarter.",
                "It is T × S for each query head, and there are still 32 of them.",
            ),
        ),
    ),
    Question(
        "Why does one kept token rescue a window of 64?",
        right=2,
        choices=(
            (
                "The first word of a text says what the text is about.",
                "Any other word in that place does it too, and keeping a different token does not.",
            ),
            (
                "A window of 65 is better than one of 64.",
                "A window of 256 without it is worse than one of 64 with it.",
            ),
            (
                "Many heads put their spare attention on the first position; without it they put "
                "it on tokens that have something to say.",
                "It is a place for weight that has nowhere to go. Gone, the softmax still has to "
                "sum to 1.",
            ),
        ),
    ),
    Question(
        "A window of 139 gives a loss of 12.9 on a copy 140 tokens away, a window of 141 gives "
        "1.9. What does that rule out?",
        right=0,
        choices=(
            (
                "That thirty layers pass the copy on from window to window in this model.",
                "With 139 tokens per layer, two layers would be enough, and nothing of it shows.",
            ),
            (
                "That the model can copy at all.",
                "With the window of 141 it does.",
            ),
            (
                "That a model trained with a window could reach further than one.",
                "This model was trained without one. It says nothing about models that were.",
            ),
        ),
    ),
    Question(
        "A ring of 64 places runs a prompt in chunks of 256 and shows no error. "
        "Which measurement would show whether it overwrites keys that it needs?",
        right=2,
        choices=(
            (
                "The memory it takes.",
                "It stays at 64 places either way.",
            ),
            (
                "The answer to one prompt shorter than 64 tokens.",
                "There the ring never wraps, and every ring is right.",
            ),
            (
                "Its logits beside those of a dense cache with the same mask, on a prompt of "
                "several chunks.",
                "The two must agree to rounding, at lengths around the window and beyond it.",
            ),
        ),
    ),
    Question(
        "A stack of 24 layers has a window of 1,024 in all but 4 of them. What does the cache of a "
        "text of 100,000 tokens consist of, mostly?",
        right=1,
        choices=(
            (
                "The 20 local layers, since there are more of them.",
                "They hold 20 · 1,024 places together, about 20 thousand.",
            ),
            (
                "The 4 global layers.",
                "They hold 400,000 places of 420,000. Long texts cost what the global layers cost.",
            ),
            (
                "Both about equally.",
                "They would at about 5,000 tokens; from there only the global ones grow.",
            ),
        ),
    ),
)
