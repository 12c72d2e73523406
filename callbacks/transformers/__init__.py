"""The callback for the Trainer of Hugging Face's transformers, and its hyperparameter search.

    from haltune.callbacks.transformers import HaltuneCallback

    with trial:
        arguments = TrainingArguments(folder, num_train_epochs=trial.max_epochs, eval_strategy="epoch")
        trainer = Trainer(model, arguments, ..., callbacks=[HaltuneCallback(trial, "eval_loss")])
        trainer.train(resume_from_checkpoint=trial.checkpoint)

It reports after every evaluation of a training, with state.epoch, which is fractional within an epoch; not
what `trainer.evaluate()` alone or eval_on_start measures. After an exception the Trainer calls no callback:
keep the training inside `with trial:`. A pause asks the Trainer for one of its checkpoints and takes that
over, random state included: a resumed training equals an uninterrupted one digit for digit.

Ctrl-C and SIGTERM wait for the next evaluation of a training in one process, whose state is saved likewise, so that the
same program continues exactly there; a second one leaves at once. With several ranks they are heard at once.

In a distributed training every rank makes a callback, the first talks to the study, and all do as it says.

`hyperparameter_search(trainer, space)` is `trainer.hyperparameter_search` with haltune as what decides.
"""

from .callback import HaltuneCallback
from .search import hyperparameter_search

__all__ = ["HaltuneCallback", "hyperparameter_search"]
