"""Self-test of notebook 04."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "At which prompt length does the time of a pass begin to grow in step with the prompt, and "
        "why there?",
        right=1,
        choices=(
            (
                "At two tokens: twice the tokens are twice the calculations.",
                "The calculations double, but with few tokens they are not what takes the time.",
            ),
            (
                "Near the ridge, where the arithmetic takes as long as reading all weights once.",
                "Below it the weights have to be read anyway, and more tokens use the same "
                "reading. With 4-byte weights it lies at 2 · FLOP/s ÷ bytes/s tokens.",
            ),
            (
                "At some 3,000 tokens, where attention's T² overtakes the weights.",
                "There the growth becomes faster than the prompt's. In step with it, it is long "
                "before.",
            ),
        ),
    ),
    Question(
        "Which measurement would show that a loaded model lacks its last norm?",
        right=2,
        choices=(
            (
                "Names and shapes of all tensors fit the configuration.",
                "They do fit: the weight is there, only nobody uses it.",
            ),
            (
                "The hidden states of all layers equal those of a right model.",
                "They are equal. The fault comes after the last of them.",
            ),
            (
                "The logits of one short text compared with stored reference values.",
                "Any difference in the wiring shows there, and a few numbers suffice.",
            ),
        ),
    ),
    Question(
        "With the edge from the country to the last position cut in layer 23, ` Paris` no longer "
        "rises steeply after that layer. What does this rule out?",
        right=0,
        choices=(
            (
                "That the steep rise happens by itself, wherever the country's name was read.",
                "One edge in one layer was removed, and the rise went with it: this edge carries "
                "what lifts ` Paris` so fast.",
            ),
            (
                "That other heads help.",
                "` Paris` still comes out near the top in the end, so something else does help.",
            ),
            (
                "That the lens is a faithful picture of the model's thoughts.",
                "It rules nothing out about thoughts. The lens is known to be worse than a blind "
                "guess in most layers.",
            ),
        ),
    ),
    Question(
        "At temperature 2, top-p 0.9 keeps thousands of tokens and min-p 0.1 keeps a few dozen at "
        "most. Why?",
        right=1,
        choices=(
            (
                "min-p 0.1 is the stricter number.",
                "The numbers mean different things. At temperature 0.7 both keep two or three.",
            ),
            (
                "The flat tail holds so much mass together that top-p needs it to reach 0.9; min-p "
                "compares each token with the best one.",
                "Thousands of unlikely tokens add up. One by one they are far below a tenth of the "
                "best one.",
            ),
            (
                "top-p is applied before the temperature.",
                "In this library it is the other way round, which is what lets the tail in.",
            ),
        ),
    ),
    Question(
        "A prompt of 1,000 tokens is prefilled in chunks of 100. What is the same, what is not?",
        right=2,
        choices=(
            (
                "Faster, and the logits differ a little, since early chunks cannot see later ones.",
                "In a causal model no token sees later ones in either case.",
            ),
            (
                "The same logits in the same time, with a tenth of the KV cache.",
                "All keys and values are needed afterwards, and all of them are kept.",
            ),
            (
                "The same logits; less memory for what is computed on the way; the weights are "
                "read ten times.",
                "Above the ridge the additional readings cost little, which is why servers "
                "do this, to let others' tokens in between.",
            ),
        ),
    ),
)
