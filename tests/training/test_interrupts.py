"""Signals are noted on arrival and obeyed later; a second Ctrl-C is not waited for."""

import os
import signal
import threading

import pytest

from blockout.training.interrupts import SIGNALS, Pending


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite itself may run under nohup
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_noted_and_told_and_handlers_come_back(name):
    number, before = getattr(signal, name), [signal.getsignal(number) for number in SIGNALS]
    pending = Pending()
    with pending.noted():
        assert pending.flags() == [0.0, 0.0, 0.0]
        os.kill(os.getpid(), number)
    assert pending.numbers == {number}
    assert pending.flags() == [float(one == number) for one in SIGNALS]
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_a_second_ctrl_c_stops_at_once(first):
    with Pending().noted():
        os.kill(os.getpid(), getattr(signal, first))
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    pending = Pending()
    with pending.noted():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert not pending.numbers


def test_in_another_thread_signals_are_left_alone():
    found = []

    def work() -> None:
        with Pending().noted():
            found.append([signal.getsignal(number) for number in SIGNALS])

    before = [signal.getsignal(number) for number in SIGNALS]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
