"""How predictions are judged: scores, which round is reported, intervals and paired tests."""
