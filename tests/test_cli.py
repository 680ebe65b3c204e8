"""The command line: what it prints where, its exit codes, and its one-line errors."""

import json
import math
import os
import signal
import subprocess
import sys

import pytest

from minillm.cli import main
from minillm.commands.chat import fit_history
from minillm.inspection import inspect_model

QUESTION = "What is the capital of France?"
PARIS = "The capital of France is Paris.\n"
# In full precision: with inputs in 8 bits the first token is a near tie that goes the other way.
PLAIN = ["--backend", "torch"]


def run(*arguments, text=None, cut=None):
    """The command in a process of its own; `cut` reads so many bytes and closes the pipe."""
    command = [sys.executable, "-m", "minillm", *arguments]
    if cut is None:
        return subprocess.run(command, capture_output=True, text=True, input=text)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(cut)
        process.stdout.close()
        errors = process.stderr.read().decode()
        process.wait()
    return process, errors


@pytest.fixture(autouse=True)
def _same_model(smollm2):
    """All commands name smollm2; fail early where it is missing."""


def test_generate_answers_on_stdout_and_figures_go_to_stderr(capsys):
    assert main(["generate", QUESTION, *PLAIN]) == 0
    out, err = capsys.readouterr()
    assert out == PARIS
    assert "tokens/s" in err
    assert "stop" in err


def test_generate_raw_and_stop(capsys):
    assert main(["generate", "--raw", "1, 2, 3, 4,", "--stop", " 7"]) == 0
    assert capsys.readouterr().out == " 5, 6,\n"


def test_generate_with_a_window(capsys):
    """A few numbers before it are enough to count on; one comma is not, unless layers see all."""
    arguments = ["generate", "--raw", "1, 2, 3, 4,", "--max-new-tokens", "12", *PLAIN]
    assert main([*arguments, "--window", "16", "--sinks", "1"]) == 0
    assert capsys.readouterr().out.startswith(" 5, 6, 7")
    assert main([*arguments, "--window", "2"]) == 0
    assert "5, 6, 7" not in capsys.readouterr().out
    assert main([*arguments, "--window", "2", "--global-every", "1"]) == 0
    assert capsys.readouterr().out.startswith(" 5, 6, 7")


def test_generate_reads_standard_input():
    done = run("generate", "-", *PLAIN, text=QUESTION + "\n")
    assert (done.stdout, done.returncode) == (PARIS, 0)


def test_chat_keeps_the_conversation():
    done = run("chat", *PLAIN, text=f"{QUESTION}\n\n/reset\n{QUESTION}\n/exit\nnot read")
    assert (done.stdout, done.returncode) == (PARIS * 2, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "x", "--top-p", "3"], "top_p is 3.0; a number from 0 to 1 is needed"),
        (["generate", "x", "--model", "no/such-model"], "minillm pull no/such-model"),
        (["generate", "x", "--device", "tpu"], "device 'tpu' cannot be used here"),
        (["generate", "--raw", ""], "the prompt '' has no tokens"),
        (["generate", "--raw", "--system", "a", "b"], "--system needs the chat template"),
        (["tokenize", "x", "--model", "/no/such/folder"], "/no/such/folder"),
        (["inspect", "/no/such/folder"], "/no/such/folder"),
        (["pull", "not a name"], "'not a name' cannot be pulled"),
        (["bench", "--runs", "0"], "runs is 0"),
        (["eval", "--text", "/no/such/file"], "/no/such/file"),
        (["eval", "--text", "."], "Is a directory: '.'"),
        (["eval", "--text", __file__, "--context", "1"], "context is 1; at least 2 tokens"),
        (["eval", "--text", __file__, "--stride", "0"], "stride is 0"),
        (["eval", "/no/such/folder", "--text", __file__], "/no/such/folder"),
        (["eval", "--text", __file__, "--compare", "/no/such/folder"], "/no/such/folder"),
        (["eval", "--text", __file__, "--compare-dtype", "int3"], "dtype is 'int3'"),
        (["bench", "--window", "9", "--compare", "transformers"], "leave --window out"),
        (["generate", "x", "--window", "0"], "window is 0; a whole number from 1"),
        (["generate", "x", "--window", "8", "--sinks", "-1"], "sinks is -1"),
        (["chat", "--sinks", "4"], "sinks and global_every need a window"),
    ],
)
def test_errors_are_one_line(capsys, arguments, message):
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("minillm: error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err
    assert out in (
        "",
        "engine        prompt  batch   TTFT, ms   ITL, ms   prefill tok/s   decode tok/s\n",
    )


def test_debug_shows_the_traceback():
    for arguments in (["--debug", "generate", "x"], ["generate", "x", "--debug"]):
        with pytest.raises(ValueError, match="top_p"):
            main([*arguments, "--top-p", "3"])


def test_an_error_that_nobody_foresaw_is_one_line_too(monkeypatch, capsys):
    def broken(*_, **__):
        raise KeyError("a\nb")

    monkeypatch.setattr("minillm.llm.LLM.from_pretrained", broken)
    assert main(["generate", "x"]) == 1
    assert capsys.readouterr().err == "minillm: error: KeyError: 'a\\nb' (--debug shows where)\n"


def test_a_warning_is_one_line(capsys):
    assert main(["tokenize", "a\x04b"]) == 0
    warning = "minillm: warning: the vocabulary has no token for these bytes of the text: 0x04"
    assert capsys.readouterr().err.startswith(warning)


@pytest.mark.parametrize(
    "arguments", [[], ["nope"], ["generate"], ["generate", "x", "--seed", "y"]]
)
def test_wrong_use_is_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minillm: error: ")
    assert "--help" in line


def test_a_closed_pipe_ends_it_quietly():
    arguments = ("generate", "--raw", "Once upon a time", "--max-new-tokens", "40")
    process, errors = run(*arguments, cut=3)
    assert process.returncode == 1
    assert errors == ""


def test_interrupt_is_exit_code_130(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("minillm.llm.LLM.from_pretrained", interrupted)
    assert main(["generate", "x"]) == 130


@pytest.fixture
def _listens_to_ctrl_c():
    """SIGINT as in a terminal. A script that runs the suite in the background has it ignored, and
    a child process inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.usefixtures("_listens_to_ctrl_c")
def test_interrupt_ends_the_answer_and_not_the_chat():
    """Ctrl-C while an answer streams; /exit is still read."""
    command = [sys.executable, "-m", "minillm", "chat", "--ignore-eos"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Write a long story.\n")
        process.stdin.flush()
        begun = process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(b"/exit\n")
    assert process.returncode == 0, err
    assert begun
    assert b"[interrupted]" in err
    assert b"Traceback" not in err


def test_terminal_that_is_not_utf8():
    command = [sys.executable, "-m", "minillm", "tokenize", "Grüße 🌶"]
    done = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0
    assert b"?" in done.stdout


def test_tokenize_json_equals_the_tokenizer(capsys, llm):
    text = "Grüße, <|im_end|> 12"
    assert main(["tokenize", text, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ids"] == llm.tokenizer.encode(text)
    assert found["pieces"] == llm.tokenizer.pieces(found["ids"])
    assert main(["tokenize", text, "--json", "--special"]) == 0
    special = json.loads(capsys.readouterr().out)["ids"]
    assert special == llm.tokenizer.encode(text, allowed_special="all")
    assert special != found["ids"]


def test_inspect(capsys):
    assert main(["inspect"]) == 0
    out = capsys.readouterr().out
    assert "134,515,008" in out
    assert main(["inspect", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads(json.dumps(inspect_model("smollm2")))
    assert facts["cache bytes per token"]["bfloat16"] == 23_040
    assert facts["weight bytes"]["float32"] == 538_060_032


def test_commands_read_a_gguf_file(capsys, smollm2, tmp_path):
    """It holds the values of the folder that was made from it."""
    (file,) = smollm2.glob("*.gguf")
    assert main(["inspect", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    of_folder = inspect_model("smollm2")
    assert facts.pop("bytes of the weight files") == file.stat().st_size
    assert of_folder.pop("bytes of the weight files") > of_folder["weight bytes"]["float32"]
    assert facts == of_folder | {"model": str(file)}
    assert main(["tokenize", "How does it work?", "--model", str(file), "--json"]) == 0
    ids = capsys.readouterr().out
    assert main(["tokenize", "How does it work?", "--json"]) == 0
    assert capsys.readouterr().out == ids
    assert main(["generate", QUESTION, "--model", str(file), *PLAIN]) == 0
    assert capsys.readouterr().out == PARIS
    (tmp_path / "text").write_text("The sea is wide and blue.")
    compared = ["--text", str(tmp_path / "text"), "--compare", "smollm2", "--json"]
    assert main(["eval", str(file), *compared]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["KL maximum"] < 1e-6
    assert found["same top token"] == 1


def test_save_writes_a_folder_that_is_the_same_model(capsys, smollm2, tmp_path):
    (file,) = smollm2.glob("*.gguf")
    out = tmp_path / "model"
    assert main(["save", str(file), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert main(["generate", QUESTION, "--model", str(out), *PLAIN]) == 0
    assert capsys.readouterr().out == PARIS
    assert main(["save", str(file), "--out", str(out)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_eval_compares_two_precisions(capsys, tmp_path):
    (tmp_path / "notes.txt").write_bytes("Grüße.\r\nThe capital of France is Paris.".encode())
    arguments = ["eval", "smollm2", "--text", str(tmp_path / "notes.txt"), "--context", "8"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["context"], found["stride"], found["bytes"]) == (8, 4, 41)
    assert found["tokens scored"] == found["tokens"] - 1
    assert found["perplexity"] == pytest.approx(math.exp(found["nats per token"]))
    nats = found["nats per token"] * found["tokens"]
    assert found["bits per byte"] == pytest.approx(nats / math.log(2) / 41)
    assert main([*arguments, "--compare-dtype", "bfloat16"]) == 0
    out, err = capsys.readouterr()
    assert "its dtype            bfloat16" in out
    assert f"perplexity           {found['perplexity']:.6g}\n" in out
    assert "tokens/s]" in err
    assert main([*arguments, "--compare", "smollm2", "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert (same["KL maximum"], same["same top token"]) == (0, 1)
    assert same["its perplexity"] == same["perplexity"] == found["perplexity"]


def test_eval_compares_with_the_blocks_and_a_small_cache(capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("The sea is wide, and the river finds it in the end.")
    options = ["--text", str(tmp_path / "notes.txt"), "--json"]
    other = ["--compare-quantize", "gguf", "--compare-kv-cache", "float16"]
    assert main(["eval", "smollm2", "--device", "cpu", *options, *other]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["its layers"], found["its KV cache"]) == ("gguf", "float16")
    assert 0 < found["KL divergence, nats"] < 0.1


def test_eval_reads_standard_input():
    done = run("eval", "--text", "-", "--json", text="The capital of France is Paris.")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == 31


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file: empty; a text is needed"),
        (b"a", "the text has 1 tokens; at least 2 are needed"),
        (b"GGUF\x03\x00\x00\x00\xff", "not a text in UTF-8"),
        (bytes(100), "not a text, it holds bytes of value 0"),
    ],
)
def test_eval_refuses_what_is_no_text(capsys, tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    assert main(["eval", "--text", str(tmp_path / "file")]) == 1
    assert message in capsys.readouterr().err


def test_bench_json(capsys):
    arguments = ["bench", "--prompt-tokens", "5", "--batch-sizes", "1,2", "--new-tokens", "3"]
    assert main([*arguments, "--runs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["batch_size"] for r in found["results"]] == [1, 2]
    assert all(r["ttft_s"] > 0 and r["decode_tokens_per_s"] > 0 for r in found["results"])
    assert found["machine"]["cpu"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tokenize", "x"], ["inspect"]])
def test_light_commands_do_not_load_torch(arguments):
    code = (
        "import sys; from minillm.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True)
    assert done.returncode == 0


def test_history_is_cut_to_the_context(llm, monkeypatch):
    """The oldest turns go first; the system message and the last question stay."""
    system = [{"role": "system", "content": "You are brief."}]
    turns = [
        {"role": role, "content": f"{role} {n} " + "word " * 2_000}
        for n in range(3)
        for role in ("user", "assistant")
    ]
    question = {"role": "user", "content": "And now?"}
    kept = fit_history(llm, system, [*turns, question], 512)
    assert kept == [*system, *turns[4:], question]  # four turns of 2,000 tokens are too many
    assert len(llm.chat_ids(kept)) + 512 <= 8_192
    assert fit_history(llm, system, [question], 512) == [*system, question]
    with pytest.raises(ValueError, match="the context of 8192"):
        fit_history(llm, system, [{"role": "user", "content": "word " * 9_000}], 512)
    monkeypatch.setattr(llm, "config", llm.config.with_window(64))
    assert fit_history(llm, system, [*turns, question], 512) == [*system, *turns, question]
