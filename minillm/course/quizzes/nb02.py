"""Self-test of notebook 02."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "The cosine of ` king` and ` queen` is 0.62. What does this number alone rule out?",
        right=2,
        choices=(
            (
                "That the two words mean different things.",
                "The vectors say that words are used in the same places. ` good` and ` bad` are "
                "nearer than that.",
            ),
            (
                "That the two words are no nearer than random words.",
                "Not alone: without the cosine of random words, 0.35 ± 0.17 here, 0.62 could be "
                "anything.",
            ),
            (
                "Hardly anything, before one knows the cosine of random pairs.",
                "All these vectors share a large common part. Compare with a baseline, or take the "
                "mean row away.",
            ),
        ),
    ),
    Question(
        "Without RoPE, exchanging ` dog` and ` man` in a sentence still changes the prediction. "
        "Why?",
        right=1,
        choices=(
            (
                "The embedding of a word depends on where it stands.",
                "It does not: the same id gives the same row at every position.",
            ),
            (
                "The causal mask leaks the order: a token sees only what stands before it.",
                "Without the mask as well, the change falls to the size of rounding errors.",
            ),
            (
                "Rounding errors add up over 30 layers.",
                "They stay 10,000 times smaller than this change.",
            ),
        ),
    ),
    Question(
        "Adding 5,000 to every position changes nothing. A gap of 12,000 positions in the middle "
        "of the text ruins copying. How can both be?",
        right=0,
        choices=(
            (
                "Scores depend on distances. The shift leaves them alone, the gap makes distances "
                "that never occurred in training.",
                "Exactly. Where a text stands does not matter; how far apart its parts are does.",
            ),
            (
                "5,000 is below the trained length of 8,192, and 12,000 is above it.",
                "A shift by 100,000 changes nothing either.",
            ),
            (
                "The angles lose precision at large positions.",
                "They are computed in float64; the error is far too small.",
            ),
        ),
    ),
    Question(
        "A loader mixed up the two layouts of RoPE. Which measurement shows it most clearly?",
        right=2,
        choices=(
            (
                "The answer to `The capital of France is`.",
                "It is still ` Paris`, with every other capital right as well.",
            ),
            (
                "The shapes and the norms of queries and keys.",
                "Both layouts turn pairs, so shapes and lengths are the same.",
            ),
            (
                "The loss when 40 random tokens are repeated.",
                "It jumps from about 2 to about 12 nats, since only positions can help there.",
            ),
        ),
    ),
    Question(
        "Linear scaling by 4 keeps every angle within the trained range, and still ruins this "
        "model. Why?",
        right=1,
        choices=(
            (
                "The slow pairs turn too slowly.",
                "The other methods slow them by the same factor, and work.",
            ),
            (
                "The fast pairs, which tell neighbours apart, now turn four times too slowly.",
                "NTK-aware scaling, YaRN and Llama 3's rule leave them alone.",
            ),
            (
                "It needs float64 angles.",
                "All the methods get them.",
            ),
        ),
    ),
)
