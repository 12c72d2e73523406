"""Which way a metric points, by its name."""

from __future__ import annotations

import pytest

from haltune.log.metric_names import direction

DOWN = """loss val_loss train-rmse validation-logloss eval/loss rmse MSE val_mae mean_squared_error error err
perplexity val.ppl WER cer FID nll bpc bpb eval_loss merror valLoss CrossEntropyLoss binary_crossentropy
top5_error test/top1_err word_error_rate mae@12 multi_logloss epoch_loss"""
UP = """acc accuracy val_acc val_accuracy val_categorical_accuracy binary_accuracy eval/f1 F1Score f1_macro macroF1
R2 r2_score val_auc AUROC roc_auc_score precision recall@10 mAP mAP50 val/mAP map@0.5 IoU mean_iou bleu BLEU4 sacrebleu
rouge1 rougeL eval_rougeLsum ROUGE-2 ndcg@10 top1 top5 top_1 top-5-accuracy acc1 mrr dice_coefficient valAccuracy
average_precision matthews_correlation log_likelihood"""
UNKNOWN = """value score metric x glossary mapping errand lossless val time epoch_seconds accuracy_loss f1_error
neg_mean_squared_error neg_log_likelihood accuracy_drop loss_gap 1-accuracy 1_acc inverse_loss ___ topology"""


@pytest.mark.parametrize("name", DOWN.split())
def test_what_counts_mistakes_is_to_be_small(name: str) -> None:
    assert direction(name) == -1.0


@pytest.mark.parametrize("name", UP.split())
def test_what_counts_success_is_to_be_large(name: str) -> None:
    assert direction(name) == 1.0


@pytest.mark.parametrize("name", UNKNOWN.split())
def test_a_name_that_says_nothing_or_both_is_not_guessed(name: str) -> None:
    assert direction(name) is None
