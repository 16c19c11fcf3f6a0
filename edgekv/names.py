"""Names of everything that crosses from an exported graph to the runtime, with shape and dtype.

Owns: the operator's identity and every graph input and output name. Exporter, executors and tests
read them here and nowhere else. Knows nothing of any library.

Symbols: T tokens in the step, B sequences, M page-table columns, A rope axes, N logit rows,
P pages in the pool, Hk KV heads, S page size, D head dimension, L encoder states of one input.
"""

OP_DOMAIN = "edgekv"
OP_NAME = "PagedAttention"
OP_VERSION = 2  # the operator's schema version; changes whenever its inputs or their meaning change

# decoder.onnx, inputs
INPUTS_EMBEDS = "inputs_embeds"  # (T, hidden) float32
POSITION_IDS = "position_ids"  # (T,) int64, or (A, T) int64 when A > 1
LOGIT_INDICES = "logit_indices"  # (N,) int64, which of the T tokens want logits
PAGE_TABLE = (
    "page_table"  # (B, M, 2 + A) int32: page id, valid tokens, shift per axis; id -1 = unused
)
QUERY_STARTS = "query_starts"  # (B + 1,) int32
SLOT_MAPPING = "slot_mapping"  # (T,) int32, page * page_size + offset, -1 = do not write
KV_LIMITS = "kv_limits"  # (T,) int32, how many tokens in logical order each query token may see
QUERY_INDICES = "query_indices"  # (T,) int32, logical index of the query token itself

# decoder.onnx, one layer's node only (the bundle's ``mass_layer``)
PAGE_MASS = "page_mass"  # (P,) float32, attention that fell on each page; bound in place
MASS_WEIGHTS = "mass_weights"  # (B,) float32, how much each sequence's queries count, 0 = not
PAGE_MASS_OUT = "page_mass_out"  # (P,) float32, bound to the same memory as the input
# decoder.onnx of a model with cross-attention, inputs beside those
CROSS_PAGE_TABLE = "cross_page_table"  # (B, M, 2) int32 over the cross pools; id -1 = unused
CROSS_KV_LIMITS = "cross_kv_limits"  # (T,) int32, how many encoder states each token may see

# decoder.onnx, output
LOGITS = "logits"  # (N, vocab) float32
QUERIES = "queries"  # (T, Hq * D) float32, of one layer, rotated at their positions; optional

# vision.onnx
PIXEL_VALUES = "pixel_values"  # (num_images, 3, height, width) float32
IMAGE_EMBEDS = "image_embeds"  # (num_images, tokens_per_image, hidden) float32

# encoder.onnx of a model with cross-attention: pixel_values (tiles, 3, height, width) with
# aspect_ratio_ids, or input_features
ASPECT_RATIO_IDS = "aspect_ratio_ids"  # (1,) int64, which arrangement the tiles have
INPUT_FEATURES = "input_features"  # (1, num_mels, num_frames) float32
ENCODER_STATES = "encoder_states"  # (L, encoder hidden) float32, an input of cross.onnx too

# cross.onnx: encoder states into the cross pools, which are its inputs and its only outputs
CROSS_SLOT_MAPPING = "cross_slot_mapping"  # (L,) int32, page * page_size + offset, -1 = leave out

_CROSS = "cross_"  # what names of pools that cross-attention reads begin with


def pool(part: str, kind: str, layer: int, *, cross: bool = False) -> str:
    """Name of a layer's tensor that is written in place: ``part`` is ``key`` or ``value``, ``kind``
    ``pool`` or, beside int8 pools, ``scales`` (P, Hk, S) float32, and of outputs ``pool_out`` or
    ``scales_out``, bound to the memory of the input; ``cross``: what cross-attention reads."""
    return f"{_CROSS if cross else ''}{part}_{kind}.{layer}"


def is_cross_pool(name: str) -> bool:
    """Whether ``pool`` made this name with ``cross``."""
    return name.startswith(_CROSS) and "." in name


def key_pool(layer: int) -> str:
    """Input name of a layer's key pool, (P, Hk, S, D) in the bundle's KV dtype."""
    return pool("key", "pool", layer)


def value_pool(layer: int) -> str:
    """Input name of a layer's value pool, (P, Hk, S, D) in the bundle's KV dtype."""
    return pool("value", "pool", layer)


def key_pool_out(layer: int) -> str:
    """Output name of a layer's key pool; bound to the same memory as the input."""
    return pool("key", "pool_out", layer)


def value_pool_out(layer: int) -> str:
    """Output name of a layer's value pool; bound to the same memory as the input."""
    return pool("value", "pool_out", layer)


def cross_key_pool(layer: int) -> str:
    """A cross-attention layer's key pool: input of decoder.onnx, in- and output of cross.onnx."""
    return pool("key", "pool", layer, cross=True)


def cross_value_pool(layer: int) -> str:
    """A cross-attention layer's value pool: input of decoder.onnx, in- and output of cross.onnx."""
    return pool("value", "pool", layer, cross=True)


def cross_key_pool_out(layer: int) -> str:
    """Output of cross.onnx; bound to the same memory as its input."""
    return pool("key", "pool_out", layer, cross=True)


def cross_value_pool_out(layer: int) -> str:
    """Output of cross.onnx; bound to the same memory as its input."""
    return pool("value", "pool_out", layer, cross=True)
