"""Self-test of notebook 08."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "A GPU shows 100 % utilisation in decode, and achieves 1 % of its FLOP/s. What does it "
        "wait for?",
        right=2,
        choices=(
            (
                "Arithmetic: it is fully busy.",
                "Busy says only that some kernel was running. At 1 % of the FLOP/s arithmetic is "
                "the one thing that it does not wait for.",
            ),
            (
                "Memory: decode always does.",
                "Perhaps. A large model's does; a small one's waits for launches. The two figures "
                "do not tell.",
            ),
            (
                "That cannot be told yet: look at the bytes per second.",
                "Near the limit, it is memory. Far from it, too, it is launches, or kernels that "
                "read badly.",
            ),
        ),
    ),
    Question(
        "A small model on a large GPU writes no faster when its weights are stored in 4 bits in "
        "place of 16, with a good kernel. What does this rule out?",
        right=0,
        choices=(
            (
                "That it waits for the bytes of its weights.",
                "A quarter of the bytes would have shown. What is left is the number of launches: "
                "record the step as a graph.",
            ),
            (
                "That it waits for launches.",
                "These are as many as before, whatever the weights are stored in: it fits.",
            ),
            (
                "That the kernel reads the codes.",
                "It may read them perfectly, and start too late each time.",
            ),
        ),
    ),
    Question(
        "Which measurement shows that a recorded step keeps its first position for ever?",
        right=1,
        choices=(
            (
                "The answer to `The capital of France is`.",
                "` Paris` comes from prefill, and the first step is at the right position. The "
                "text after it is fluent.",
            ),
            (
                "The logits after a few replays, against one full forward pass.",
                "They must agree to a hundred-thousandth of the largest. Texts hide such faults "
                "(notebook 05).",
            ),
            (
                "The time per token.",
                "A step at a wrong position takes just as long.",
            ),
        ),
    ),
    Question(
        "INT8 weights make a model stream twice as fast, and a prompt of 4,000 tokens waits as "
        "long as before. Why?",
        right=1,
        choices=(
            (
                "The kernel is not used in prefill.",
                "It may be. The number of multiplications is the same as before.",
            ),
            (
                "Prefill waits for arithmetic, and that did not change.",
                "Each weight is read once for 4,000 tokens: its bytes hardly count. What helps "
                "TTFT is fewer prompt tokens, or faster arithmetic.",
            ),
            (
                "The KV cache is still in 16 bits.",
                "Prefill writes it once. It has nothing to read but what it just wrote.",
            ),
        ),
    ),
    Question(
        "The stop string is `END`, and the stream has just got `the E`. What may be shown?",
        right=2,
        choices=(
            (
                "`the E`; if `ND` follows, take it back.",
                "What a stream has handed out is out: it may be on a screen, in a file, spoken.",
            ),
            (
                "Nothing before the answer ends.",
                "Then it is no stream. `the ` cannot become part of `END` any more.",
            ),
            (
                "`the `; the `E` waits for the next piece.",
                "Hold back the longest end that a stop string begins with, and nothing else.",
            ),
        ),
    ),
)
