"""Every feature map, as kernels/options/feature_maps.hpp has it and says what it means.

Written from there by tests/storage/model/python_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
"""

from __future__ import annotations

from typing import NamedTuple


class FeatureMapRow(NamedTuple):
    activation: str
    projection: bool = False
    negation: bool = False
    temperature: bool = False
    clamped: bool = True
    positive: bool = True
    one_draw: bool = False
    series: bool = False


FEATURE_MAPS = {
    "hedgehog_softmax": FeatureMapRow("hedgehog_softmax", projection=True, negation=True),
    "hedgehog_exp": FeatureMapRow("hedgehog_exp", projection=True, negation=True),
    "t2r": FeatureMapRow("relu", projection=True),
    "elu_plus_one": FeatureMapRow("elu_plus_one"),
    "relu": FeatureMapRow("relu"),
    "identity": FeatureMapRow("identity", clamped=False, positive=False),
    "positive_random": FeatureMapRow("positive_random", projection=True, clamped=False, one_draw=True),
    "taylor": FeatureMapRow("taylor", clamped=False, series=True),
    "exp": FeatureMapRow("exp", temperature=True),
    "projected_elu_plus_one": FeatureMapRow("elu_plus_one", projection=True),
}
