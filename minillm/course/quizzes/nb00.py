"""Self-test of notebook 00."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "A prompt of 100 tokens, an answer of 50, with a cache. How many decode passes?",
        choices=(
            ("50", "Prefill already gives the first token of the answer, so one fewer is needed."),
            ("49", "Prefill gives the first token; each of the other 49 takes one decode pass."),
            ("150", "The 100 tokens of the prompt go through in prefill, in one pass."),
        ),
        right=1,
    ),
    Question(
        "The first word of an answer takes three seconds, then the text streams quickly. Which "
        "measurement would show whether the length of the prompt is to blame?",
        choices=(
            (
                "The mean ITL over a longer answer",
                "ITL begins after the first token. It says nothing about the first wait.",
            ),
            (
                "The total time of a shorter answer",
                "That removes gaps from the end; the first wait stays the same.",
            ),
            (
                "TTFT with a prompt a tenth as long",
                "Only the prompt changes, and only the first wait is measured. If TTFT falls with "
                "it, prefill was the cause.",
            ),
        ),
        right=2,
    ),
    Question(
        "With all connections of the process forbidden, TTFT is the same as before. What does this "
        "number rule out?",
        choices=(
            (
                "That the network causes the wait",
                "The wait stays although there is no network, so it has another cause.",
            ),
            (
                "That the prompt causes the wait",
                "The prompt was the same both times, so the comparison says nothing about it.",
            ),
            (
                "That a hosted model would answer later",
                "A hosted model adds its network to this wait; nothing here speaks against that.",
            ),
        ),
        right=0,
    ),
    Question(
        "At temperature 0 a model gives the same answer in a hundred runs. What follows?",
        choices=(
            (
                "The answer is true",
                "The same wrong token can have the highest score a hundred times.",
            ),
            (
                "The model is sure of it",
                "Greedy decoding takes the top token whether it has probability 0.9 or 0.1.",
            ),
            (
                "Only that each step took its highest score",
                "That is all temperature 0 does: it repeats, and it repeats mistakes as well.",
            ),
        ),
        right=2,
    ),
    Question(
        "A chat program is asked `And of Italy?` and answers `Rome`. Where was the question about "
        "capitals?",
        choices=(
            (
                "In the weights, which learnt it a moment ago",
                "Weights change in training only. Every pass reads the same ones.",
            ),
            (
                "In the ids of this call: the program sent the conversation again",
                "The prompt grows with each turn, and all of it is the input of the next call.",
            ),
            (
                "In the model, which keeps a conversation until it is closed",
                "A server may keep a cache to save time, but it computes it from the same ids.",
            ),
        ),
        right=1,
    ),
)
