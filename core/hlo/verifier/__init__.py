"""The HLO verifier: the checks that XLA makes before and after its passes, each a named rule."""

from hloscope.core.hlo.verifier.findings import RULES, Finding, Rule
from hloscope.core.hlo.verifier.options import VerifierOptions, options_for
from hloscope.core.hlo.verifier.verify import verify

__all__ = ["RULES", "Finding", "Rule", "VerifierOptions", "options_for", "verify"]
