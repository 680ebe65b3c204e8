"""Self-test of notebook 07."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "A model is rounded to 4 bits, in groups of 32 with a float minimum, and the KL divergence "
        "from the original is 0. What is suspicious?",
        right=1,
        choices=(
            (
                "Nothing: with groups that small, 4 bits are enough.",
                "Any 32 numbers rounded to 16 values are off by something. An error of exactly 0 "
                "says that nothing was rounded.",
            ),
            (
                "The original: its weights lay on that grid before.",
                "They came out of a file with 4 bits, groups of 32 and a float minimum. The test "
                "compares the file with itself; on any other grid the error is back.",
            ),
            (
                "The calibration text was also the evaluation text.",
                "Rounding uses no text at all. For GPTQ and AWQ that would flatter, but not to 0.",
            ),
        ),
    ),
    Question(
        "After quantization the perplexity is 1 % higher. Which measurement would show whether the "
        "model still gives the same answers?",
        right=2,
        choices=(
            (
                "The perplexity on a longer text.",
                "It becomes more exact, but errors in both directions still cancel in its mean.",
            ),
            (
                "The mean squared error of the weights.",
                "It does not know which weights matter: GPTQ raises it and helps the model.",
            ),
            (
                "At each position, whether both have the same top token, and the KL divergence.",
                "Both compare the two models with each other, token by token, rather than each "
                "with the text.",
            ),
        ),
    ),
    Question(
        "Keys in 4 bits do far less harm with a scale per channel than with a scale per token, at "
        "the same number of bits. What does that rule out?",
        right=0,
        choices=(
            (
                "That 4 bits are too few for keys.",
                "The bits were the same. What differs is which numbers share a scale: in keys, "
                "some channels are large for every token.",
            ),
            (
                "That values are easier to store than keys.",
                "Nothing here is about values. They have no such channels, and a scale per token "
                "suits them.",
            ),
            (
                "That the first token is special.",
                "It has an outlier of its own, in the residual stream. This is about channels.",
            ),
        ),
    ),
    Question(
        "On one layer GPTQ is no better than rounding to the nearest. What are that layer's inputs "
        "like?",
        right=1,
        choices=(
            (
                "A few channels are much larger than the rest.",
                "That alone changes which errors matter, and it is what AWQ makes use of.",
            ),
            (
                "Uncorrelated: no channel says anything about another.",
                "GPTQ makes up for an error in one column with the columns that vary together with "
                "it. If the Hessian is diagonal, there are none.",
            ),
            (
                "Strongly correlated.",
                "Then later columns can make up for most of an error: it is GPTQ's best case.",
            ),
        ),
    ),
    Question(
        "In INT4 the layers' weights take a seventh of the bytes, and yet a token takes longer to "
        "write. Why?",
        right=2,
        choices=(
            (
                "4-bit arithmetic is slow.",
                "There is none: the products are computed in floating point.",
            ),
            (
                "Decode is limited by arithmetic after all.",
                "At batch 1 it waits for bytes (notebook 05); fewer bytes read would be quicker.",
            ),
            (
                "The weights are turned back into floats, in memory, before each product.",
                "So the bytes are written and read after all, with work on top. The gain needs a "
                "kernel that reads the codes and unpacks them on the way: notebook 08.",
            ),
        ),
    ),
)
