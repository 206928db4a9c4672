import signal
import subprocess
import sys

import pytest

from train.interrupt import Interrupt


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_the_first_signal_only_sets_a_flag(number, status):
    usual = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert interrupt.received is None
        signal.raise_signal(number)
        assert interrupt.received == number
        assert interrupt.exit_status == status
    assert signal.getsignal(number) is usual


def test_without_a_signal_everything_is_as_before():
    usual = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert signal.getsignal(signal.SIGINT) is not usual
    assert interrupt.received is None
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.processes
def test_the_second_signal_ends_the_process():
    program = (
        "import signal\n"
        "from train.interrupt import Interrupt\n"
        "with Interrupt():\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    print('still here', flush=True)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    print('never printed', flush=True)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stdout == "still here\n"
    assert result.returncode == -signal.SIGINT
