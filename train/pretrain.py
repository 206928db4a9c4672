"""Trains a GPT from scratch through a pipeline.

    python -m train.pretrain configs/gpt_tiny.yaml
    python -m train.pretrain configs/gpt_tiny.yaml --data.path my_text/ --run_dir runs/mine
    python -m train.pretrain configs/gpt_tiny.yaml --resume --mesh.pipe 2
    python -m train.pretrain configs/gpt_tiny.yaml --help

Ends with status 0 when all steps are done, 2 when it cannot run as asked, and 128 + signal number
(130 for Ctrl-C, 143 for SIGTERM) when it was interrupted: it has then finished its step and saved,
and the same command with `--resume` goes on with the very losses it would have had.
"""

import math
import signal
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.checkpoint import CheckpointError, Checkpoints
from jaxpipe.runtime.plan import bytes_text
from train.build import build_pipeline, initial_params
from train.config import Config, parse_arguments
from train.corpus import Corpus, load_corpus
from train.data import TrainingBatches, Windows, held_out_batches
from train.devices import simulate_devices
from train.interrupt import Interrupt
from train.metrics import Clock, MetricsFile, Progress, bits_per_byte
from train.optimizer import build_optimizer, learning_rate_schedule
from train.run_folder import RunFolder
from train.step import build_train_step, bytes_per_device, initial_state
from train.user_error import UserError


class Pretraining:
    """A run: its state, and what moves it on.

    Args:
        config: What to train.
        folder: Where the run leaves its files.
        corpus: The text.

    Raises:
        UserError: The settings do not fit together, the text, or the devices.
    """

    def __init__(self, config: Config, folder: RunFolder, corpus: Corpus) -> None:
        self.config, self.folder, self.corpus = config, folder, corpus
        length, batch_size = config.data.sequence_length, config.training.batch_size
        self.batches = TrainingBatches(
            Windows(corpus.training, length, origin="training text"),
            batch_size=batch_size,
            seed=config.seed,
        )
        held_out = held_out_batches(
            Windows(corpus.held_out, length, origin="held-out text"),
            batch_size=batch_size,
            num_batches=config.training.eval_batches,
        )
        self.held_out = jax.tree.map(jnp.asarray, held_out)  # the same at every evaluation
        self.pipeline = build_pipeline(config)
        self.optimizer = build_optimizer(config.optimizer, config.training.steps)
        self.state = initial_state(initial_params(self.pipeline, config), self.optimizer)
        self.step = 0  # optimizer steps done
        self.progress = Progress(num_steps=config.training.steps)

    def describe(self) -> str:
        """What is about to run: the text, the devices, and the plan of a step."""
        devices = self.pipeline.spec.mesh.devices.ravel()
        corpus = self.corpus
        key = jax.random.key(self.config.seed)
        plan = self.pipeline.plan(self.state.params, self.held_out[0], key)
        return "\n".join(
            [
                f"text     {corpus.description}: {len(corpus.training):,} bytes to train on, "
                f"{len(corpus.held_out):,} held out, fingerprint {corpus.fingerprint}",
                f"devices  {len(devices)} x {devices[0].device_kind}",
                f"folder   {self.folder.path}",
                "",
                str(plan),
                f"optimizer   {bytes_text(bytes_per_device(self.state.optimizer))} per device, "
                "beside the memory above",
                "",
            ]
        )

    def restore(self, checkpoints: Checkpoints) -> None:
        """Goes back to the last checkpoint.

        Raises:
            UserError: There is none, or it belongs to another text.
            CheckpointError: It belongs to another model.
        """
        steps = checkpoints.steps()
        if not steps:
            raise UserError(
                f"{self.folder.path} has no checkpoint to resume from: that run ended before its "
                f"first one; remove the folder (rm -r {self.folder.path}) and start again"
            )
        step = steps[-1]
        notes = checkpoints.notes(step)
        if notes["fingerprint"] != self.corpus.fingerprint:
            raise UserError(
                f"the run in {self.folder.path} was trained on another text: {notes['corpus']}, "
                f"fingerprint {notes['fingerprint']}, and this is {self.corpus.description}, "
                f"fingerprint {self.corpus.fingerprint}; resume it with the text it had (the text "
                "of Python differs between its versions), or start another run with --run_dir"
            )
        if step > self.config.training.steps:
            raise UserError(
                f"the run in {self.folder.path} has done {step} steps already, and "
                f"training.steps={self.config.training.steps}; ask for more"
            )
        self.state = checkpoints.restore(step, self.state, pipeline=self.pipeline)
        self.batches.resume(notes["position"])
        self.step = step

    def save(self, checkpoints: Checkpoints) -> None:
        """Begins to write a checkpoint of this step."""
        notes = {
            "fingerprint": self.corpus.fingerprint,
            "corpus": self.corpus.description,
            "position": self.batches.position(),
            "seed": self.config.seed,
        }
        checkpoints.save(self.step, self.state, pipeline=self.pipeline, notes=notes)

    def evaluate(self) -> float:
        """Mean loss over all held-out tokens."""
        total, weight = 0.0, 0.0
        for batch in self.held_out:
            loss, means = self.pipeline.evaluate(self.state.params, batch)
            batch_weight = float(means.weight)
            total, weight = total + float(loss) * batch_weight, weight + batch_weight
        return total / weight

    def run(self, checkpoints: Checkpoints, metrics: MetricsFile, interrupt: Interrupt) -> None:
        """Trains to the end, or until interrupted, and saves.

        Raises:
            UserError: The loss is no longer a number.
        """
        config = self.config.training
        train_step = build_train_step(
            self.pipeline, self.optimizer, self.state, seed=self.config.seed
        )
        learning_rate = learning_rate_schedule(self.config.optimizer, config.steps)
        first_step = self.step + 1
        clock = Clock()
        while self.step < config.steps and interrupt.received is None:
            self.state, result = train_step(self.state, next(self.batches), self.step)
            self.step += 1
            clock.count()
            is_last = self.step == config.steps
            if is_last or self.step % config.log_every == 0:
                self._log(
                    metrics,
                    loss=float(result.loss),
                    gradient_norm=float(result.gradient_norm),
                    learning_rate=float(np.asarray(learning_rate(self.step - 1))),
                    seconds_per_step=clock.lap(),
                )
            if is_last or self.step % config.eval_every == 0:
                loss = self.evaluate()
                bits = bits_per_byte(loss)
                metrics.write(self.step, eval_loss=loss, eval_bits_per_byte=bits)
                self.progress.say(
                    f"step {self.step}: held-out loss {loss:.4f}, {bits:.3f} bits/byte"
                )
                clock.restart()
            if is_last or self.step % config.checkpoint_every == 0:
                self.save(checkpoints)
                clock.restart()
            if self.step == first_step:
                # The first step was compiled, which says nothing of the others.
                jax.block_until_ready(result)
                clock.restart()
        self.save(checkpoints)

    def _log(
        self,
        metrics: MetricsFile,
        *,
        loss: float,
        gradient_norm: float,
        learning_rate: float,
        seconds_per_step: float,
    ) -> None:
        if not math.isfinite(loss):
            raise UserError(
                f"the loss of step {self.step} is {loss}; resume from the last checkpoint with a "
                f"lower optimizer.learning_rate (now {self.config.optimizer.learning_rate}) or a "
                f"longer optimizer.warmup_steps (now {self.config.optimizer.warmup_steps})"
            )
        config = self.config.training
        tokens_per_step = config.batch_size * self.config.data.sequence_length
        speed = tokens_per_step / seconds_per_step
        metrics.write(
            self.step,
            loss=loss,
            bits_per_byte=bits_per_byte(loss),
            tokens_per_second=speed,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
        )
        self.progress.update(
            self.step,
            loss=loss,
            tokens_per_second=speed,
            learning_rate=learning_rate,
            seconds_left=(config.steps - self.step) * seconds_per_step,
        )


def pretrain(config: Config, folder: RunFolder, *, resume: bool) -> int:
    """Trains as configured.

    Returns:
        The exit status.

    Raises:
        UserError: It cannot run as asked.
        CheckpointError: The checkpoint to resume from is of another model.
    """
    if resume:
        changes = folder.check_resumable(config)
    else:
        folder.check_fresh()
        changes = []
    simulate_devices(config.mesh)
    corpus = load_corpus(config.data.path, held_out_percent=config.data.held_out_percent)
    run = Pretraining(config, folder, corpus)
    if resume:
        with Checkpoints(folder.checkpoint_folder) as checkpoints:
            run.restore(checkpoints)
    description = run.describe()
    # Nothing is written before here: a run that cannot start leaves no folder behind.
    with Checkpoints(
        folder.checkpoint_folder, keep=config.training.keep_checkpoints
    ) as checkpoints:
        folder.write_config(config)
        metrics = MetricsFile(folder.metrics_file, last_step=run.step)
        run.progress.say(description)
        if resume:
            changed = "".join(f"; {change}" for change in changes)
            run.progress.say(f"resumed after step {run.step}{changed}")
        with metrics, Interrupt() as interrupt:
            run.run(checkpoints, metrics, interrupt)
    if interrupt.received is None:
        run.progress.say(f"done: {config.training.steps} steps, saved in {folder.path}")
        return 0
    run.progress.say(
        f"{interrupt.received.name}: stopped after step {run.step}, saved in {folder.path}; "
        f"--resume goes on (exit status {interrupt.exit_status})"
    )
    return interrupt.exit_status


def main(arguments: Sequence[str]) -> int:
    """Runs the program and returns its exit status."""
    try:
        said = parse_arguments("train.pretrain", arguments)
        return pretrain(said.config, RunFolder(said.run_folder), resume=said.resume)
    except (UserError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the first step; later ones are an `Interrupt`
        print("interrupted before the first step, nothing to save", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
