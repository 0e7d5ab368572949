"""Settings of all tests."""
import signal

# A shell that starts the tests in the background ignores Ctrl-C for them and their children. The
# tests of interrupts need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
