"""The shape of Keras' simple convnet: build, compile, fit with callbacks, evaluate."""

import keras
import numpy as np
import optuna
from keras import layers
from optuna_integration import KerasPruningCallback

num_classes = 4
input_shape = (8, 8, 1)
rng = np.random.default_rng(0)
labels = rng.integers(num_classes, size=640)
images = rng.normal(size=(640, *input_shape)).astype("float32") + labels[:, None, None, None] / 4
x_train, x_test = images[:512], images[512:]
y_train, y_test = (keras.utils.to_categorical(part, num_classes) for part in (labels[:512], labels[512:]))

batch_size = 32
epochs = 9


def make_model(filters=16, dropout=0.5, learning_rate=1e-3):
    model = keras.Sequential(
        [
            keras.Input(shape=input_shape),
            layers.Conv2D(filters, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Flatten(),
            layers.Dropout(dropout),
            layers.Dense(num_classes, activation="softmax"),
        ]
    )
    model.compile(
        loss="categorical_crossentropy", optimizer=keras.optimizers.Adam(learning_rate), metrics=["accuracy"]
    )
    return model


def objective(trial):
    callbacks = [
        KerasPruningCallback(trial, "val_accuracy"),
        keras.callbacks.ModelCheckpoint(
            f"trial-{trial.number}.keras", save_best_only=True, monitor="val_accuracy"
        ),
        keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=4, verbose=1),
    ]
    model = make_model(
        filters=trial.suggest_int("filters", 2, 32, log=True),
        dropout=trial.suggest_float("dropout", 0, 0.7),
        learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True),
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch_size,
        epochs=epochs,
        validation_split=0.2,
        callbacks=callbacks,
        verbose=2,
    )
    return history.history["val_accuracy"][-1]


same = {"storage": "sqlite:///search.db", "study_name": "study", "load_if_exists": True}
study = optuna.create_study(direction="maximize", **same)
study.optimize(objective, n_trials=8)
model = keras.models.load_model(f"trial-{study.best_trial.number}.keras")
score = model.evaluate(x_test, y_test, verbose=0)
print("Test accuracy:", score[1])
