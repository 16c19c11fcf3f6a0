"""Whisper: an encoder of sound that every layer of the decoder looks at.

Positions are learned, so cached pages cannot move. What a decoder token holds depends on the sound
from the first layer on: the whole prompt, its start token included, is asked with each question.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForSpeechSeq2Seq

from edgekv import names
from edgekv.config import AudioSettings
from edgekv.errors import BundleError
from edgekv.export.families.parts import CrossPart, Parts
from edgekv.export.source import Source

_MAX_HERTZ = 8000  # what the mel scale of the feature extractor ends at
# Text given before becomes the model's own "previous text"; the question is the list of its tasks.
_TEMPLATE = (
    "{{% for message in messages %}}{{% if message['role'] == 'system' %}}<|startofprev|> "
    "{{{{ message['content'] }}}}{{% elif message['role'] == 'user' %}}{start}"
    "{{{{ message['content'] }}}}{{% else %}}{{{{ message['content'] }}}}<|endoftext|>{{% endif %}}"
    "{{% endfor %}}"
)


class _Encoder(torch.nn.Module):
    """Log-mel features of one sound -> its states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.encoder(input_features).last_hidden_state
        return states[0]


class _Decoder(torch.nn.Module):
    """The decoder with its head, which never says what the model's authors suppress."""

    suppressed: torch.Tensor  # (vocab,) 0, or minus infinity

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder = model.model.decoder
        self.head = model.proj_out
        suppressed = torch.zeros(model.config.vocab_size)
        tokens = getattr(model.generation_config, "suppress_tokens", None) or ()
        suppressed[list(tokens)] = -torch.inf
        self.register_buffer("suppressed", suppressed, persistent=False)
        # Keys and values come from pages, but a layer that is given no states looks at none.
        self.register_buffer("states", torch.zeros(1, 1, model.config.d_model), persistent=False)

    def forward(
        self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor,
        logits_to_keep: torch.Tensor | None = None, **kwargs: Any,
    ) -> SimpleNamespace:  # fmt: skip
        hidden = self.decoder(
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            encoder_hidden_states=self.states,
            **kwargs,
        ).last_hidden_state
        if logits_to_keep is not None:
            hidden = hidden[:, logits_to_keep]
        return SimpleNamespace(logits=self.head(hidden) + self.suppressed)


def load(source: Source) -> Parts:
    """The model as it is, its decoder called so that cross-attention always runs."""
    model = source.load_model(AutoModelForSpeechSeq2Seq)
    config = model.config
    audio = _audio_settings(source, config)
    start = source.tokenizer.convert_ids_to_tokens(config.decoder_start_token_id)
    if not isinstance(start, str):
        raise BundleError(
            f"{source.folder}: decoder_start_token_id {config.decoder_start_token_id} has no token"
        )
    num_frames = audio.num_samples // audio.hop_samples
    return Parts(
        family="whisper",
        model=model,
        text_config=config,
        vision=None,
        cross=CrossPart(
            encoder=_Encoder(model).eval(),
            encoder_inputs={names.INPUT_FEATURES: torch.zeros(1, audio.num_mels, num_frames)},
            layers=[layer.encoder_attn for layer in model.model.decoder.layers],
            states_name="key_value_states",
            states_per_part=config.max_source_positions,
            default_question=_default_question(source, model.generation_config),
            audio=audio,
        ),
        decoder=_Decoder(model).eval(),
        chat_template=_TEMPLATE.format(start=start),
    )


def _default_question(source: Source, generation_config: Any) -> str:
    """English transcription without time stamps, said as the model's own tokens."""
    vocab = source.tokenizer.get_vocab()
    multilingual = getattr(generation_config, "is_multilingual", None)
    tokens = ["<|notimestamps|>"]
    if multilingual or (multilingual is None and "<|transcribe|>" in vocab):
        tokens = ["<|en|>", "<|transcribe|>", *tokens]
    return "".join(token for token in tokens if token in vocab)


def _audio_settings(source: Source, config: Any) -> AudioSettings:
    found = source.read_json("preprocessor_config.json")
    if not found:
        found = source.read_json("processor_config.json").get("feature_extractor", {})
    if not found:
        raise BundleError(f"{source.folder}: preprocessor_config.json is missing")
    rate = int(found.get("sampling_rate", 16000))
    audio = AudioSettings(
        sampling_rate=rate,
        num_samples=int(found.get("chunk_length", 30)) * rate,
        fft_size=int(found.get("n_fft", 400)),
        hop_samples=int(found.get("hop_length", 160)),
        num_mels=int(found.get("feature_size", config.num_mel_bins)),
    )
    if rate < 2 * _MAX_HERTZ:
        raise BundleError(f"{source.folder}: sampling_rate must be 16000 or more, got {rate}")
    takes = 2 * config.max_source_positions  # its second convolution halves them
    if (audio.num_mels, audio.num_samples // audio.hop_samples) != (config.num_mel_bins, takes):
        raise BundleError(
            f"{source.folder}: the feature extractor gives {audio.num_mels} mels of "
            f"{audio.num_samples // audio.hop_samples} frames, the encoder takes "
            f"{config.num_mel_bins} of {takes}"
        )
    return audio
