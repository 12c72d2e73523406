"""The callback for Lightning, under both its names: `lightning` and `pytorch_lightning`.

    from haltune.callbacks.lightning import HaltuneCallback

    trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)])
    trainer.fit(model, data, ckpt_path=trial.checkpoint)

It reports after every validation of a fit, be it several an epoch or one in several
epochs; a metric logged only in training is reported at the end of each training epoch.
What an epoch brings is reported at its very end, with every metric that was logged in it.
It says nothing in sanity checks, in fast_dev_run, in the Tuner's own fits, and in
`validate` and `test`. Importing this module imports no framework.

A paused trial is saved at the end of an epoch and goes on, in the fit that is given
`ckpt_path=trial.checkpoint`, as if it had never been paused. With several processes rank 0
reports, and all obey.
"""

from .callback import HaltuneCallback

__all__ = ["HaltuneCallback"]
