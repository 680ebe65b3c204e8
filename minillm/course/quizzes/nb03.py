"""Self-test of notebook 03."""

from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "You change the mask, and the loss on a text falls from 3.5 to 2.2. Good news?",
        right=2,
        choices=(
            (
                "Yes: a lower loss is a better model.",
                "Only if the model cannot see what it is asked to predict.",
            ),
            (
                "Yes, if the text is long enough.",
                "A longer text measures the same leak more precisely.",
            ),
            (
                "No: the next token probably leaks. Generate something before you believe it.",
                "Without a mask the loss fell just so, and the continuation was gibberish. While "
                "generating, the future does not exist.",
            ),
        ),
    ),
    Question(
        "Which measurement shows that query heads read the wrong key/value head?",
        right=0,
        choices=(
            (
                "A test with six query heads and two key/value heads, against heads written out.",
                "Here `h // 3` and `h % 2` differ for four of the six heads.",
            ),
            (
                "A test with as many key/value heads as query heads.",
                "Then both rules give h, and the fault stays hidden.",
            ),
            (
                "A look at the output's shape.",
                "The shape is the same, whichever head is read.",
            ),
        ),
    ),
    Question(
        "Hiding the country from the last token in layer 23 alone takes the right answers from 7 "
        "to 0. In any other layer it changes nothing. What does that rule out?",
        right=1,
        choices=(
            (
                "That the MLPs store the fact.",
                "An edge carries information. Where it came from is another question.",
            ),
            (
                "That the country is passed on gradually, a little in every layer.",
                "Then cutting one layer would cost a little, wherever it was cut.",
            ),
            (
                "That head 23.4 matters for anything else.",
                "Seven prompts of one kind say nothing about other texts.",
            ),
        ),
    ),
    Question(
        "Removing the MLP of layer 11 costs more than one nat. What does it store?",
        right=2,
        choices=(
            (
                "Grammar, since all text suffers.",
                "The loss does not say what was lost. Look at which position it was lost.",
            ),
            (
                "Facts: MLPs hold the knowledge.",
                "At all positions but the first the loss hardly moves without it.",
            ),
            (
                "From this number alone, nothing can be said.",
                "Most of the damage comes from the first position, where that MLP writes the sink. "
                "Zeroing it there alone shows this.",
            ),
        ),
    ),
    Question(
        "Attention computed tile by tile gives the same result as with the full matrix. Why is it "
        "worth the trouble?",
        right=0,
        choices=(
            (
                "It needs memory in proportion to the length, not to its square.",
                "No T × S matrix ever exists, and kernels that never write it are faster as well.",
            ),
            (
                "It skips the small weights.",
                "It skips nothing: the result is exact up to rounding.",
            ),
            (
                "It needs fewer multiplications.",
                "It needs a few more, for scaling down the sum and the output so far.",
            ),
        ),
    ),
)
