"""Direction of a metric by its name: down for val_loss, up for val_acc.

A name is split into words at characters other than letters and digits, and at camelCase. A number at the end of a word
is ignored (mAP50, rouge2). Only whole words count, so that "glossary" does not contain loss.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from haltune._utils.arrays import Array


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DOWN = _words_of(
    """loss losses logloss mlogloss rmse mse mae mape smape rmsle msle mphe error err errors merror perplexity ppl
    wer cer ter mer der fid kid nll bpc bpb bpd crossentropy brier ece eer lpips hinge divergence kl kld regret
    misclassification"""
)
_UP = _words_of(
    """acc accuracy auc auroc auprc aucpr f1 r2 r² precision recall map ap iou miou bleu sacrebleu chrf rouge rougel
    rougelsum meteor cider ndcg dcg mrr dice jaccard kappa mcc sensitivity specificity correlation pearson spearman
    psnr ssim hits likelihood reward"""
)
_UP_ALONE = frozenset({"top"})  # top1, top5: accuracy, unless the name has an error
_TURNS = _words_of(  # words that reverse a metric, or make it another one
    """neg negative minus inverse inv drop gap gain improvement reduction diff difference delta change decrease
    increase"""
)
_SHARES = _words_of(  # shares: at most 1, or 100 in percent
    """acc accuracy auc auroc auprc aucpr f1 precision recall map ap iou miou dice jaccard ndcg mrr top sensitivity
    specificity"""
)
_AT_LEAST_0 = _words_of(
    """rmse mse mae mape smape rmsle error err errors merror wer cer ter mer der fid brier ece eer misclassification"""
)
_LOGS = _words_of("log log2 log10 ln db")  # of them a metric has other limits
_PARTS = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[^\W\dA-Z_]+\d*|\d+")


def direction(metric: str) -> float | None:
    """Return +1 if larger is better, -1 if smaller is better, None if the name has no direction or both."""
    words = _words(metric)
    if words[:1] == ["1"] or _TURNS.intersection(words):
        return None
    found = {sign for sign, known in ((-1.0, _DOWN), (1.0, _UP)) if known.intersection(words)}
    if not found and _UP_ALONE.intersection(words):
        return 1.0
    return found.pop() if len(found) == 1 else None


def meant(metric: str) -> str | None:
    """Return a name with a direction that differs from this one by a typing error, or None."""
    for part in _PARTS.findall(metric):
        for near in get_close_matches(part.lower(), sorted(_DOWN | _UP), n=1, cutoff=0.8):
            if direction(other := metric.replace(part, near, 1)) is not None:
                return other
    return None


def is_never_negative(metric: str) -> bool:
    """Return whether a metric is an error of at least 0, by its name: rmse; not loss, which may be a logarithm."""
    words = _words(metric)
    return direction(metric) == -1.0 and _LOGS.isdisjoint(words) and not _AT_LEAST_0.isdisjoint(words)


def limit(metric: str, sign: float, values: Array) -> float | None:
    """Return the best possible value by the name and the finite values: 1, or 100, for val_acc.

    sign: +1 to maximize, -1 to minimize. None if the limit is unknown.
    """
    words = set(_words(metric))
    if direction(metric) != sign or words & _LOGS or not len(values) or values.min() < 0.0:
        return None
    highest = float(values.max())
    if sign > 0 and words & _SHARES and highest <= 100.0:
        return 1.0 if highest <= 1.0 else 100.0
    return 0.0 if is_never_negative(metric) else None


def _words(metric: str) -> list[str]:
    found = ["minus"] if metric.startswith("-") else []
    for part in _PARTS.findall(metric):
        whole = _known(part)
        found += [whole] if whole else [_known(piece) or piece.lower() for piece in _CAMEL.findall(part)]
    return found


def _known(part: str) -> str | None:
    """Return a known word, with or without the number at its end."""
    known = _DOWN | _UP | _UP_ALONE | _TURNS
    return next((word for word in (part.lower(), part.lower().rstrip("0123456789")) if word in known), None)


def is_learnt(metric: str) -> bool:
    """Return whether training changes the metric, by its name: acc, recall, a gap; not params."""
    return direction(metric) is not None or not _TURNS.isdisjoint(_words(metric))
