import json, shutil, os
import pytest, torch
import tests.cli.test_malformed as t
from tests.cli.test_malformed import good, CASES, consilia, tree
OUT="/tmp/actual.json"
got={}
@pytest.mark.parametrize("case", CASES, ids=lambda c:c.name)
def test_dump(case, good, tmp_path, capfd, monkeypatch):
    shutil.copytree(good, tmp_path/"study"); monkeypatch.chdir(tmp_path/"study")
    monkeypatch.setattr(torch.cuda,"is_available",lambda:False)
    case.spoil(); before=tree(tmp_path)
    e=consilia(capfd, monkeypatch, *case.words.split())
    after=tree(tmp_path)
    got[case.name]=dict(code=e.code,err=e.err,out=e.out,want=case.code,left=sorted(k for k in {*before,*after} if before.get(k)!=after.get(k)))
    from pathlib import Path; Path(OUT).write_text(json.dumps(got,indent=1))
