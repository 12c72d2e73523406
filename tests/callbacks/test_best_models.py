"""The best run's model back by one call, in each framework; Keras' is in keras/keras_best_checks.py."""

import pytest
from scripted import ENDS, scripted_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


@pytest.mark.slow
def test_a_lightning_module_comes_back_with_its_hyperparameters_saved_or_passed():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    class Passed(Net):
        def __init__(self, lr):
            super().__init__()
            self.lr = lr

        def on_train_epoch_end(self):
            super().on_train_epoch_end()
            states[self.lr, self.current_epoch + 1] = {n: v.clone() for n, v in self.state_dict().items()}

        def validation_step(self, batch, index):
            self.log("val_loss", ENDS[self.trial][self.current_epoch])

    class Saved(Passed):
        def __init__(self, lr):
            super().__init__(lr)
            self.save_hyperparameters()

    for kind in (Passed, Saved):
        for of, trial_and_epoch in (("last", (0, 3)), ("best", (1, 2))):
            states = {}
            study = scripted_study(of)
            for trial in study:
                net = kind(**trial.config)
                net.trial = trial.id
                with trial:
                    trainer = make_trainer(HaltuneCallback(trial), epochs=trial.max_epochs)
                    trainer.fit(net, shuffled(), shuffled(), ckpt_path=trial.checkpoint)
            best = study.best
            assert (best.trial, best.epoch, best.checkpoint_epoch) == (*trial_and_epoch, best.epoch)
            config = {} if kind is Saved else best.config
            back = kind.load_from_checkpoint(best.checkpoint, **config)
            expected = states[best.config["lr"], best.epoch]
            assert back.lr == best.config["lr"]
            assert all(torch.equal(value, expected[name]) for name, value in back.state_dict().items())


@pytest.mark.parametrize(("of", "epoch", "saves"), [("last", 3, "no"), ("best", 2, "epoch")])
def test_a_hugging_face_model_comes_back_by_from_pretrained(of, epoch, saves, tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers_nets import trainer

    from haltune.callbacks.transformers import HaltuneCallback

    class Config(transformers.PretrainedConfig):
        model_type = "haltune-tiny"

    class Model(transformers.PreTrainedModel):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            self.layer = torch.nn.Linear(3, 1)
            self.post_init()

        def forward(self, x, labels):
            out = self.layer(x).squeeze(-1)
            return {"loss": (out - labels).pow(2).mean(), "logits": out}

    class Scripted(transformers.TrainerCallback):
        """A callback before haltune's that replaces the values by the script's."""

        def on_evaluate(self, args, state, control, metrics=None, model=None, **others):
            metrics["eval_loss"] = ENDS[self.trial][round(state.epoch) - 1]
            states[self.trial, round(state.epoch)] = model.layer.weight.detach().clone()

    states = {}
    study = scripted_study(of, metric="eval_loss")
    for trial in study:
        with trial:
            script = Scripted()
            script.trial = trial.id
            folder = tmp_path / str(trial.id)
            t = trainer(folder, script, HaltuneCallback(trial), model=Model(Config()), save_strategy=saves)
            t.train(resume_from_checkpoint=trial.checkpoint)
            assert len(list(folder.glob("checkpoint-*"))) == (3 if saves == "epoch" else 0)
    best = study.best
    assert (best.epoch, best.checkpoint_epoch) == (epoch, epoch)
    back = Model.from_pretrained(best.checkpoint)
    assert torch.equal(back.layer.weight, states[best.trial, epoch])
