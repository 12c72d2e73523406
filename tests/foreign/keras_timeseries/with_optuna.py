"""The shape of Keras' timeseries classification from scratch: a functional model, three callbacks, the best weights."""

import keras
import numpy as np
import optuna
from optuna_integration import KerasPruningCallback

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
y = rng.integers(2, size=480)
x = rng.normal(size=(480, 40, 1)).astype("float32")
x += np.sin(np.linspace(0, 6, 40) * (1 + y[:, None]))[:, :, None].astype("float32")
x_train, y_train, x_test, y_test = x[:360], y[:360], x[360:], y[360:]
num_classes = 2


def make_model(input_shape, filters=16, learning_rate=1e-3):
    input_layer = keras.layers.Input(input_shape)
    conv = keras.layers.Conv1D(filters=filters, kernel_size=3, padding="same")(input_layer)
    conv = keras.layers.ReLU()(keras.layers.BatchNormalization()(conv))
    gap = keras.layers.GlobalAveragePooling1D()(conv)
    output_layer = keras.layers.Dense(num_classes, activation="softmax")(gap)
    model = keras.models.Model(inputs=input_layer, outputs=output_layer)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
    return model


epochs = 12
batch_size = 32


def objective(trial):
    callbacks = [
        KerasPruningCallback(trial, "val_loss"),
        keras.callbacks.ModelCheckpoint(
            f"trial-{trial.number}.keras", save_best_only=True, monitor="val_loss"
        ),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.001, verbose=1),
        keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0.001, patience=3, verbose=1),
    ]
    model = make_model(
        input_shape=x_train.shape[1:],
        filters=trial.suggest_int("filters", 4, 32, log=True),
        learning_rate=trial.suggest_float("learning_rate", 1e-4, 1.0, log=True),
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=callbacks,
        validation_split=0.2,
        verbose=2,
    )
    return min(history.history["val_loss"])


same = {"storage": "sqlite:///search.db", "study_name": "study", "load_if_exists": True}
study = optuna.create_study(direction="minimize", **same)
study.optimize(objective, n_trials=8)

model = keras.models.load_model(f"trial-{study.best_trial.number}.keras")
test_loss, test_acc = model.evaluate(x_test, y_test, verbose=0)
print("Test accuracy", test_acc)
print("Test loss", test_loss)
