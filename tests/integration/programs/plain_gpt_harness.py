"""The same GPT through a harness."""

from plain_gpt import Trainer, arguments

from oomscope import Context, Target


def setup(ctx: Context) -> Target:
    trainer = Trainer(arguments([]), str(ctx.device))
    return Target(trainer.step, model=trainer.model, optimizer=trainer.optimizer)
