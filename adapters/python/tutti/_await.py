"""Lets a coroutine wait for a Work while the event loop goes on."""

import asyncio


def wait_for(work):
    if not work.done():
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def end():
            if not over.done():  # the task may have been cancelled
                over.set_result(None)

        def call_back(_):
            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:
                pass  # the loop was closed before the operation was over

        work.add_done_callback(call_back)
        yield from over.__await__()
    return work.result()
