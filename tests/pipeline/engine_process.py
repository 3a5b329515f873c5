"""A process with an engine, like a pipeline process: prints its state, and runs until it is killed.

Run as `python -m tests.pipeline.engine_process FOLDER`.
"""

import asyncio
import sys
from pathlib import Path

from ebla.pipeline.spark_engine import SparkEngine
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import EngineState


async def main(folder: Path) -> None:
    engine = SparkEngine(SparkOptions(folder=folder, master="local[2]"), b"")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.serve())
        printed = ""
        while True:
            status = engine.status()
            if printed != str(status):
                printed = str(status)
                assert engine._live is not None or status.state is not EngineState.READY
                java = engine._live.session.java.place if engine._live is not None else ""
                pid = engine._live.session.process.pid if engine._live is not None else 0
                print(status.state, pid, java, status.cause, sep="|", flush=True)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
