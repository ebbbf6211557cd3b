"""The package against the library as it is built here: UDM_LIBRARY says where."""

import errno
import threading
import unittest

import udm


class Stacks(unittest.TestCase):
    def test_devices_come_and_go(self) -> None:
        with udm.Stack("a,,,,0 2048 ram;b,U,,ro,0 2048 linear /dev/mapper/a 0") as stack:
            self.assertEqual(sorted(stack.devices()), ["a", "b"])
            self.assertEqual(stack.table("b"), "0 2048 linear 600:0 0\n")
            self.assertTrue(stack.info().read_only)
            info = stack.info("a")
            self.assertEqual((info.size, info.logical_block_size, info.discard), (1 << 20, 512, True))
            stack.create("c", uuid="V")
            stack.load("c", "0 8 zero")
            self.assertEqual(stack.table("c", inactive=True), "0 8 zero \n")
            stack.resume("c")
            stack.suspend("c")
            self.assertIn("SUSPENDED", stack.command("info", "c"))
            stack.remove("c")
            self.assertEqual(sorted(stack.devices()), ["a", "b"])

    def test_refusals_have_number_and_words(self) -> None:
        with self.assertRaises(udm.UdmError) as caught:
            udm.Stack("a,,,,0 8 rom")
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        self.assertIn("did you mean ram?", caught.exception.strerror)
        with udm.Stack() as stack:
            for words, number in [(["remove", "x"], errno.ENXIO), (["frobnicate"], errno.EINVAL)]:
                with self.assertRaises(udm.UdmError) as caught:
                    stack.command(*words)
                self.assertEqual(caught.exception.errno, number, words)
            with self.assertRaises(udm.UdmError):
                stack.open("x")
        with self.assertRaises(ValueError):
            stack.devices()

    def test_a_stack_outlives_its_queues(self) -> None:
        stack = udm.Stack("a,,,,0 8 ram")
        queue = stack.open()
        with self.assertRaises(udm.UdmError) as caught:
            stack.remove("a")
        self.assertEqual(caught.exception.errno, errno.EBUSY)
        with self.assertRaises(ValueError):
            stack.close()
        queue.close()
        queue.close()
        stack.close()
        stack.close()
        with self.assertRaises(ValueError):
            queue.read(0, 512)


class Queues(unittest.TestCase):
    def setUp(self) -> None:
        self.stack = udm.Stack("a,,,,0 2048 ram;e,,,,0 8 error")
        self.queue = self.stack.open("a", depth=8)

    def tearDown(self) -> None:
        self.queue.close()
        self.stack.close()

    def test_one_at_a_time(self) -> None:
        self.queue.write(512, b"x" * 512)
        self.queue.write(1024, memoryview(b"y" * 512), flags=udm.FUA)
        self.queue.flush()
        into = bytearray(1024)
        self.queue.readinto(512, into)
        self.assertEqual(bytes(into), b"x" * 512 + b"y" * 512)
        self.queue.write_zeroes(512, 512)
        self.queue.discard(1024, 512)
        self.assertEqual(self.queue.read(512, 1024), bytes(1024))
        # The caller's memory is its own again.
        into.extend(b"more")

    def test_many_at_a_time(self) -> None:
        for at in range(8):
            parts = [bytearray([at] * 512), bytes([at + 100] * 1024)]
            self.queue.submit(udm.WRITE, at * 1536, parts, token=("write", at))
        with self.assertRaises(ValueError):
            self.queue.flush()
        done = []
        while len(done) < 8:
            done += self.queue.wait()
        self.assertEqual(sorted(c.token for c in done), [("write", at) for at in range(8)])
        self.assertTrue(all(c.error is None for c in done))
        self.assertEqual(self.queue.poll(), [])
        self.assertEqual(self.queue.read(3 * 1536, 1536), bytes([3] * 512 + [103] * 1024))

    def test_errors(self) -> None:
        with self.assertRaises(udm.UdmError):
            self.queue.read(1 << 20, 512)
        with self.assertRaises(udm.UdmError):
            self.queue.read(1, 512)
        with self.assertRaises(BufferError):
            self.queue.readinto(0, b"x" * 512)
        with self.assertRaises(BufferError):
            self.queue.write(0, memoryview(bytearray(2048))[::2])
        with self.assertRaises(ValueError):
            self.queue.read(-512, 512)
        with self.stack.open("e") as failing:
            with self.assertRaises(udm.UdmError) as caught:
                failing.read(0, 512)
            self.assertEqual(caught.exception.errno, errno.EIO)
        caught_in_thread = []

        def use() -> None:
            try:
                self.queue.read(0, 512)
            except ValueError as error:
                caught_in_thread.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        self.assertEqual(len(caught_in_thread), 1)


if __name__ == "__main__":
    unittest.main()
