"""Self-test of notebook 05."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "A change moved every position in decode by one. The text of ten prompts is the same as "
        "before. Is the change correct?",
        choices=(
            (
                "Yes: ten equal texts are enough",
                "A shift by one left all texts of this notebook as they were. Only scores moved.",
            ),
            (
                "It cannot be told from texts: compare the logits with one full forward pass",
                "When all is right, cached and uncached logits agree to a hundred-thousandth of "
                "the largest. One position off moves them by a hundredth or two.",
            ),
            (
                "Yes, if the loss is not worse either",
                "With every position one too high the copying loss was even a little lower.",
            ),
        ),
        right=1,
    ),
    Question(
        "Why are keys and values kept, and queries not?",
        choices=(
            (
                "Queries change when a token is appended",
                "They don't. Under a causal mask nothing of an older token changes.",
            ),
            (
                "Queries would not fit",
                "They would take as much room as H heads of keys, which is not forbidding.",
            ),
            (
                "Later tokens look at the keys and values of older ones, never at their queries",
                "A query asks once, in the pass of its own token. After that nothing reads it.",
            ),
        ),
        right=2,
    ),
    Question(
        "A step at batch 8 takes hardly longer than at batch 1. What does this number rule out?",
        choices=(
            (
                "That arithmetic is what decode waits for",
                "Eight times the arithmetic would then take eight times as long.",
            ),
            (
                "That memory is what decode waits for",
                "The weights are read once for the whole batch, so this is what memory predicts.",
            ),
            (
                "That the cache is read at all",
                "Each row's cache is read. At a short context it is small beside the weights.",
            ),
        ),
        right=0,
    ),
    Question(
        "With a cache, how does all the work of an answer of n tokens grow?",
        choices=(
            (
                "Linearly: every step runs one token",
                "True of the matrix products. Attention reads all earlier tokens at each step.",
            ),
            (
                "Matrix products linearly, attention with the square of n",
                "The steps look back at 1, 2, …, n tokens. The sum is n²/2.",
            ),
            (
                "With the square of n, like the loop without a cache",
                "Without a cache the matrix products are quadratic and attention is cubic.",
            ),
        ),
        right=1,
    ),
    Question(
        "Long texts are slow to stream. Which measurement shows whether a cache that copies itself "
        "is to blame?",
        choices=(
            (
                "TTFT at two prompt lengths",
                "Prefill fills either cache in one go; copying begins afterwards.",
            ),
            (
                "The bytes of the cache at the end",
                "Both caches hold the same keys and values. One of them moved them at each step.",
            ),
            (
                "ITL at two contexts, with this cache and with a preallocated one",
                "Both grow, since attention reads more. The difference between them is the copy.",
            ),
        ),
        right=2,
    ),
)
