"""Many threads on one virtual card: each sees its own values, and the accounts agree at the end."""

from __future__ import annotations

from tests.unit.virtual.on_card import on_card


def test_threads_share_the_card() -> None:
    """ctypes gives the interpreter's lock up during a call, so that calls really run side by side."""
    said = on_card(
        """
        import random
        import threading
        wrong = []

        def work(seed):
            choose, held, mine = random.Random(seed), {}, stream()
            try:
                for step in range(600):
                    if len(held) < 6:
                        size = choose.choice([512, 4096, 3 * MiB])
                        p = malloc(size)
                        if size > 512:
                            launch_with_buffer(p + 2048)  # what it writes lies behind what is held
                        held[p] = bytes([seed, step % 256]) * 100
                        to_device(p, held[p])
                    p = choose.choice(list(held))
                    if to_host(p, 200) != held[p]:
                        wrong.append(("content", seed, step))
                    done = event()
                    call("cudaEventRecord", done, mine)
                    call("cudaStreamSynchronize", mine)
                    if status("cudaEventQuery", done):
                        wrong.append(("event", seed, step))
                    call("cudaEventDestroy", done)
                    if choose.random() < 0.5:
                        p = choose.choice(list(held))
                        free(p)
                        del held[p]
                for p in held:
                    free(p)
            except Exception as error:
                wrong.append((seed, repr(error)))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        now = state()
        say([wrong, now.used_bytes, now.unknown_reads])
        """,
        event_lag=5,
    )
    assert said == [[], 0, 0]
