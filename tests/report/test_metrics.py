"""The scores of a run by the names that its records have."""

from __future__ import annotations

from distgnn.report import metrics, tables


def test_names_in_records_say_which_metric_it_is() -> None:
    plain, several = {"train_acc": 0.5, "val_acc": 0.25}, {"val_rocauc": 0.75, "test_rocauc": 0.5}
    assert metrics.title(plain) == metrics.title({}) == "accuracy"
    assert metrics.scores(plain) == ["train 0.5000", "val 0.2500"]
    assert metrics.title(several) == "macro ROC-AUC" and metrics.score(several, "train") is None
    assert metrics.scores(several) == ["val rocauc 0.7500", "test rocauc 0.5000"]
    assert metrics.scores(several, named=False) == ["val 0.7500", "test 0.5000"]


def test_the_table_of_runs_has_scores_with_their_metric() -> None:
    run = {"config": {"algorithm": "1d", "widths": [2, 3]}, "grid": {"rows": 1}, "ranks": [{}]}
    epochs = [{"epoch": 1, "loss": 0.5, "seconds": 1.0, "phases": {}}]
    for told, cell in (({"test_f1": 0.625}, "micro F1 0.6250"), ({"test_acc": None}, "")):
        end = {"words": [0], "bytes": [0], "messages": [0], "peak_bytes": [0]} | told
        table = tables.runs([{"name": "a", "run": run, "epochs": epochs, "end": end}])
        assert table.rows[0][table.heads.index("test score")] == cell
