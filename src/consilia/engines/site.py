"""The site half of a run: the same object in every engine."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import POOLED, Federation
from consilia.engines.judge import Judgement, judge, save_pictures
from consilia.engines.memory import MemoryStore
from consilia.engines.messages import (
    Examination,
    Failed,
    Hello,
    Optimizers,
    Overlay,
    Portrait,
    Scores,
)
from consilia.engines.portrait import portray
from consilia.errors import MessageError
from consilia.methods.contract import AnyMethod, Panel, wire_of
from consilia.payload import Record, Weights, is_finite, pack, unpack
from consilia.runs.spec import RunSpec
from consilia.training.batch import ResidentCases
from consilia.training.site import LABELS, Site, Workbench

LOG = logging.getLogger("consilia")


class SiteWorker:
    """Answers records: introduces its site, trains, evaluates. What it remembers is in `memories`."""

    def __init__(
        self,
        name: str,
        *,
        method: AnyMethod,
        federation: Federation,
        spec: RunSpec,
        data: SiteData,
        bench: Workbench,
        memories: MemoryStore,
        folder: Path | None = None,
        reticent: bool = False,
    ) -> None:
        self.name = name
        self.method = method
        self.federation = federation
        self.spec = spec
        self.data = data
        self.bench = bench
        self.memories = memories
        self.folder = folder
        self.reticent = reticent
        self.wire = wire_of(type(method))
        self._train = ResidentCases.of(data.train, data.view, bench.device, federation.exclusive)

    def handle(self, record: Record) -> Record:
        """Return the reply to a record; whatever goes wrong here is a reply too."""
        verbs = {
            "introduce": self._introduce,
            "train": self._train_round,
            "evaluate": self._evaluate,
            "examine": self._examine,
            "portray": self._portray,
        }
        self.bench.enter(self.name)
        try:
            if record.verb not in verbs:
                msg = f"a record asks to '{record.verb}'; expected one of {', '.join(verbs)}"
                raise MessageError(msg)
            reply: object = verbs[record.verb](record)
        except Exception as error:  # a failing site must never take the run down
            LOG.debug("site '%s' failed in round %d", self.name, record.round, exc_info=True)
            reply = Failed(self._told(error))
        if isinstance(reply, Record):
            return reply
        return pack(reply, record.verb, self.name, record.round)

    def _told(self, error: Exception) -> str:
        """Return what may be said of an error: a reticent site does not quote one it did not foresee."""
        if isinstance(error, MessageError):
            return str(error)
        kind = type(error).__name__
        return f"{kind}; the site's log has the rest" if self.reticent else f"{kind}: {error}"

    def _introduce(self, record: Record) -> object:
        unpack(Hello, record)
        return self.method.introduce(self._site(record.round))

    def _train_round(self, record: Record) -> Record:
        down = unpack(self.wire.down, record, self.bench.layout)
        site = self._site(record.round)
        up, memory = self.method.local_update(down, self._memory(), site)
        # An update that diverged will be dropped; what it left behind must not outlive it.
        reply = pack(up, record.verb, self.name, record.round)
        if is_finite(reply):
            self._remember(site, memory)
        return reply

    def _evaluate(self, record: Record) -> Scores:
        return self._judge(record)[0]

    def _examine(self, record: Record) -> Examination:
        scores, judged = self._judge(record)
        values = torch.from_numpy(judged.values)
        return Examination(scores, judged.case, judged.group, judged.columns, values)

    def _portray(self, record: Record) -> Portrait:
        if not self.spec.evaluate.portraits:
            msg = "the study does not ask for portraits; set evaluate.portraits = true"
            raise MessageError(msg)
        model = self.model(unpack(self.wire.down, record, self.bench.layout), record.round)
        memory = self._memory()
        follow = {} if memory is None else self.method.following(memory)
        single = model.models[0] if isinstance(model, Panel) else model
        return portray(self.bench, single, self.data.train, follow)

    def model(self, down: object, round_: int) -> Weights | Panel:
        """Return the weights this site evaluates and predicts with."""
        return self.method.model_for(down, self._memory(), self._site(round_))

    def _judge(self, record: Record) -> tuple[Scores, Judgement]:
        model = self.model(unpack(self.wire.down, record, self.bench.layout), record.round)
        models = model.models if isinstance(model, Panel) else (model,)
        validation = None
        if self.data.validation is not None and len(self.data.validation):
            units = self._units(self.data.validation)
            held = [judge(self.bench, self.federation, m, units)[0] for m in models]
            validation = Judgement.mean_of(held).means
        if not len(self.data.test):
            return Scores({}, validation), Judgement({}, (), (), (), np.zeros((0, 0)))
        units = self._units(self.data.test)
        tests = [judge(self.bench, self.federation, m, units) for m in models]
        test = Judgement.mean_of([judgement for judgement, _ in tests])
        if self.folder is not None:  # pictures stay here, whatever leaves
            path = self.folder / f"{self.name}.npz"
            save_pictures(path, self.data.test, tests[0][1], test, self.spec.evaluate.pictures)
        self.memories.let_go(self.name)  # what was read only to be judged
        return Scores(test.means, validation), test

    def _units(self, cases: Cases) -> Cases:
        """Return cases as the study scores them: whole volumes, or each of their slices alone."""
        return cases if self.spec.evaluate.unit == "volume" else replace(cases, volume=None)

    # --- what the site remembers ---

    def _site(self, round_: int) -> Site:
        optimizers = self.memories.get(f"{self.name}/optimizers", Optimizers)
        overlays = self._overlays()
        training = self.spec.training
        if self.name == POOLED and training.steps:  # as many steps as all sites together
            steps = training.steps * len(self.federation.site)
            training = training.model_copy(update={"steps": steps})
        return Site(
            name=self.name,
            federation=self.federation,
            bench=self.bench,
            train=self._train.corrected(overlays[LABELS]) if LABELS in overlays else self._train,
            training=training,
            seed=self.spec.seed,
            round=round_,
            rounds=self.spec.rounds,
            weighs=self.spec.learner.class_weight,
            optimizers=dict(optimizers.states) if optimizers else {},
            overlays=overlays,
        )

    def _overlays(self) -> dict[str, torch.Tensor]:
        prefix = f"{self.name}/overlay-"
        keys = self.memories.of(self.name)
        names = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
        found = {name: self.memories.get(prefix + name, Overlay) for name in names}
        return {name: o.target.to(self.bench.device) for name, o in found.items() if o is not None}

    def _memory(self) -> Any:
        return self.memories.get(f"{self.name}/memory", self.wire.memory)

    def _remember(self, site: Site, memory: object) -> None:
        self.memories.put(f"{self.name}/memory", memory)
        if site.optimizers:
            self.memories.put(f"{self.name}/optimizers", Optimizers(site.optimizers))
        before = self._overlays()
        for name, target in site.overlays.items():
            if name not in before or not torch.equal(before[name], target):
                self.memories.put(f"{self.name}/overlay-{name}", Overlay(target.cpu()))
