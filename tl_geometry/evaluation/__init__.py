"""What becomes of a model's predictions when parts of its attention are taken away.

The foundation that every evaluation stands on, in the order of use::

    documents = read_documents(model, data, n_ctx=256, max_documents=8)
    variants = [Variant("full"), Variant("ablated", lambda batch: my_hooks(batch.attention_mask))]
    scores = run_variants(model, documents, variants, checkpoint="run.json", settings={...})
    boot = Bootstrap(scores.targets, seed=0)
    boot.estimate(scores.nll[1], baseline=scores.nll[0])      # delta NLL with its interval
"""

from tl_geometry.evaluation.checkpoint import Checkpoint, DamagedCheckpointError
from tl_geometry.evaluation.documents import Documents, read_documents
from tl_geometry.evaluation.downstream import downstream
from tl_geometry.evaluation.faithfulness import faithfulness
from tl_geometry.evaluation.likelihood import nll_per_document
from tl_geometry.evaluation.mixing import pattern_mixing
from tl_geometry.evaluation.runs import Scores, Variant, run_variants
from tl_geometry.evaluation.sensitivity import head_sensitivity
from tl_geometry.evaluation.sinks import sink_interventions
from tl_geometry.evaluation.sparsify import sparsify
from tl_geometry.evaluation.statistics import Bootstrap, Estimate

__all__ = [
    "Bootstrap",
    "Checkpoint",
    "DamagedCheckpointError",
    "Documents",
    "Estimate",
    "Scores",
    "Variant",
    "downstream",
    "faithfulness",
    "head_sensitivity",
    "nll_per_document",
    "pattern_mixing",
    "read_documents",
    "run_variants",
    "sink_interventions",
    "sparsify",
]
