"""CIFAR-10 tasks, with hosts from tiny to deep.

A step is 24 batches of 512, an episode 13 passes. Rates start at 0.3 and fall along a cosine: of
eleven settings the baseline host did best with it (docs/growth.md), and reaches 60 % on val_score.

Score constants come from searches (docs/growth.md): growing pays off, and filling every slot does
not pay best. cifar_deep uses cifar_scale's, because its own search was too noisy. cifar_resnet8 has
the training of the ResNet literature instead (20 passes, batches of 128) and uses cifar_baseline's
constants, which were not searched for it. Its norms are group norms: a row without a seed is then
never evaluated with statistics gathered with it.

Two tasks are for audits, at budgets of 2 to 8 training runs of 11 passes: `cifar_resnet8_narrow` is
that ResNet with a quarter of the channels, `cifar_tiny10` a CNN of 2.3k parameters with ten slots.
With runs of 3 passes no topology was worth its compute (docs/audit-results.md). Their rates are
those of their siblings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from esper.leyline.prices import ScoreConstants
from esper.tasks.cifar_files import CLASSES, SHAPE, CifarFiles
from esper.tasks.hosts import (
    CNN_BLUEPRINTS,
    RESNET_BLUEPRINTS,
    TINY_BLUEPRINTS,
    CNNFactory,
    ResNetFactory,
)
from esper.tasks.registry import register_task
from esper.tasks.scoring import SIZE_SCORE, Upkeep
from esper.tasks.spec import OptimSettings, TaskSpec

BASELINE_SCORE: Final = ScoreConstants(c_p=0.05, c_m=0.005, c_f=0.005)
"""depthwise in r0c0 and r0c1 (.618) leads depthwise everywhere (.615) and the host (.604);
with slots behind pooling too, depthwise in the first three (.631) leads all six (.626) and the host
(.596). On cifar_deep depthwise in the first four of eight slots (.662) leads all eight (.657) and
the host (.656)."""
SMALL_SCORE: Final = ScoreConstants(c_p=0.003, c_m=0.002, c_f=0.005)
"""Seeds cost many times these hosts' MACs. On cifar_impaired depthwise, conv_light in r0c1, r0c2
(.271) leads every full topology (.260) and the host (.235); on cifar_minimal depthwise in r0c0 and
r0c1 (.340) leads (.327, .265)."""
LARGE_SCORE: Final = ScoreConstants(c_p=0.02, c_m=0.005, c_f=0.002)
"""On cifar_scale depthwise in the first three of five slots (.737) leads all five (.725) and the
host (.724)."""
SMALL_UPKEEP: Final = Upkeep(good_gain=0.1)
"""A good seed of a tiny host adds about 10 points."""


def _cifar(
    name: str,
    description: str,
    host: CNNFactory,
    score: ScoreConstants,
    upkeep: Upkeep | None = None,
) -> TaskSpec:
    return register_task(
        TaskSpec(
            name=name,
            description=description,
            load_data=CifarFiles(),
            host_factory=host,
            topology="cnn",
            slots=host.slots,
            blueprints=CNN_BLUEPRINTS,
            num_classes=CLASSES,
            input_shape=SHAPE,
            batch_size=512,
            batches_per_step=24,
            episode_length=50,
            chance=1 / CLASSES,
            optim=OptimSettings(host_lr=0.3, seed_lr=0.3, schedule="cosine"),
            augmentation="flip",
            score=score,
            upkeep=upkeep or Upkeep(),
        )
    )


_BASELINE: Final = _cifar(
    "cifar_baseline",
    "CIFAR-10, 8-16-32 channels, 3x3 kernels",
    CNNFactory(CLASSES, in_channels=3, base_channels=8, kernel_size=3),
    BASELINE_SCORE,
)
_cifar(
    "cifar_scale",
    "CIFAR-10, five blocks of 8 to 128 channels, 3x3 kernels",
    CNNFactory(CLASSES, in_channels=3, base_channels=8, kernel_size=3, n_blocks=5),
    LARGE_SCORE,
)
_cifar(
    "cifar_impaired",
    "CIFAR-10, 1-2-4 channels, 1x1 kernels: the host sees single pixels",
    CNNFactory(CLASSES, in_channels=3, base_channels=1, kernel_size=1),
    SMALL_SCORE,
    SMALL_UPKEEP,
)
_cifar(
    "cifar_minimal",
    "CIFAR-10, 2-4-8 channels, 1x1 kernels, no pooling: every slot at full resolution",
    CNNFactory(CLASSES, in_channels=3, base_channels=2, kernel_size=1, pool_layers=0),
    SMALL_SCORE,
    SMALL_UPKEEP,
)
_cifar(
    "cifar_multichannel",
    "CIFAR-10, 8-16-32 channels, 3x3 kernels, slots before and after pooling",
    CNNFactory(CLASSES, in_channels=3, base_channels=8, kernel_size=3, rows=2),
    BASELINE_SCORE,
)
_cifar(
    "cifar_deep",
    "CIFAR-10, eight blocks of 8 to 32 channels, 3x3 kernels, three pool",
    CNNFactory(
        CLASSES,
        in_channels=3,
        base_channels=8,
        kernel_size=3,
        n_blocks=8,
        pool_layers=3,
        max_channels=32,
    ),
    BASELINE_SCORE,
)

_TINY: Final = CNNFactory(
    CLASSES,
    in_channels=3,
    base_channels=4,
    kernel_size=3,
    n_blocks=5,
    pool_layers=3,
    max_channels=8,
    rows=2,
)

register_task(
    replace(
        _BASELINE,
        name="cifar_tiny10",
        description="CIFAR-10, five blocks of 4 to 8 channels, three pool, ten slots",
        host_factory=_TINY,
        slots=_TINY.slots,
        blueprints=TINY_BLUEPRINTS,
        batch_size=256,
        batches_per_step=96,
        episode_length=20,
        score=SIZE_SCORE,
    )
)


def _resnet(name: str, description: str, host: ResNetFactory, batches_per_step: int) -> TaskSpec:
    return TaskSpec(
        name=name,
        description=description,
        load_data=CifarFiles(),
        host_factory=host,
        topology="cnn",
        slots=host.slots,
        blueprints=RESNET_BLUEPRINTS,
        num_classes=CLASSES,
        input_shape=SHAPE,
        batch_size=128,
        batches_per_step=batches_per_step,
        episode_length=50,
        chance=1 / CLASSES,
        optim=OptimSettings(
            host_lr=0.1, seed_lr=0.1, schedule="cosine", weight_decay=5e-4, clip_norm=None
        ),
        augmentation="crop_flip",
        score=BASELINE_SCORE,
    )


register_task(
    _resnet(
        "cifar_resnet8",
        "CIFAR-10, ResNet-8 of 16-32-64 channels, two slots after each stage",
        ResNetFactory(CLASSES),
        batches_per_step=140,
    )
)
register_task(
    replace(
        _resnet(
            "cifar_resnet8_narrow",
            "CIFAR-10, ResNet-8 of 4-8-16 channels, two slots after each stage",
            ResNetFactory(CLASSES, base_channels=4),
            batches_per_step=96,
        ),
        batch_size=256,
        episode_length=20,
        score=SIZE_SCORE,
    )
)
