"""Real architectures from transformers, small, with random weights and a batch to train on."""

from __future__ import annotations

import importlib
from typing import Any, Callable

import torch

WIDTH, LAYERS, HEADS, WORDS, LENGTH, BATCH = 128, 3, 4, 500, 48, 4
TEXT = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH,
    "vocab_size": WORDS, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _make(config: str, model: str, **options: Any) -> torch.nn.Module:
    transformers = importlib.import_module("transformers")
    return getattr(transformers, model)(getattr(transformers, config)(**options))


def _words(count: int = BATCH) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, WORDS, (count, LENGTH))
    return {"input_ids": ids, "labels": ids.clone()}


def _masked_words(count: int = BATCH) -> dict[str, torch.Tensor]:
    batch = _words(count)
    batch["attention_mask"] = torch.ones(count, LENGTH, dtype=torch.int64)
    batch["attention_mask"][0, LENGTH // 2:] = 0
    return batch


def _classes(count: int = BATCH) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, WORDS, (count, LENGTH)), "labels": torch.randint(0, 2, (count,))}


def _image(count: int = BATCH, size: int = 64) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(count, 3, size, size), "labels": torch.randint(0, 2, (count,))}


def _segments(count: int = 2, size: int = 64) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(count, 3, size, size), "labels": torch.randint(0, 2, (count, size, size))}


def _boxes(count: int = 2, size: int = 64) -> dict[str, Any]:
    labels = [{"class_labels": torch.tensor([0, 1]), "boxes": torch.rand(2, 4) * 0.4 + 0.3} for _ in range(count)]
    return {"pixel_values": torch.randn(count, 3, size, size), "labels": labels}


Case = tuple[Callable[[], torch.nn.Module], Callable[..., dict[str, Any]]]
CASES: dict[str, Case] = {}


def _text(name: str, config: str, model: str, batch: Callable[..., dict[str, Any]] = _words, **options: Any) -> None:
    CASES[name] = (lambda: _make(config, model, **{**TEXT, **options}), batch)


def _other(name: str, config: str, model: str, batch: Callable[..., dict[str, Any]], **options: Any) -> None:
    CASES[name] = (lambda: _make(config, model, **options), batch)


# Language models.
_text("llama", "LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2)
_text("mistral", "MistralConfig", "MistralForCausalLM", num_key_value_heads=2, sliding_window=16)
_text("qwen2", "Qwen2Config", "Qwen2ForCausalLM", num_key_value_heads=2)
_text("qwen3", "Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=32)
_text("gemma2", "Gemma2Config", "Gemma2ForCausalLM", num_key_value_heads=2, head_dim=32)
_text("phi3", "Phi3Config", "Phi3ForCausalLM", num_key_value_heads=2)
_text("olmo2", "Olmo2Config", "Olmo2ForCausalLM", num_key_value_heads=2)
_text("gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM")
_text("falcon", "FalconConfig", "FalconForCausalLM")
_text("bloom", "BloomConfig", "BloomForCausalLM", n_layer=LAYERS, n_head=HEADS)
_other("gpt2", "GPT2Config", "GPT2LMHeadModel", _words, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=WORDS,
       n_positions=128, bos_token_id=1, eos_token_id=2)
_other("opt", "OPTConfig", "OPTForCausalLM", _words, hidden_size=WIDTH, num_hidden_layers=LAYERS, ffn_dim=256,
       num_attention_heads=HEADS, vocab_size=WORDS, max_position_embeddings=128, word_embed_proj_dim=WIDTH)
# Mixtures of experts and state-space models.
_text("mixtral", "MixtralConfig", "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4)
_text("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", num_key_value_heads=2, num_experts=4,
      num_experts_per_tok=2, moe_intermediate_size=64, head_dim=32)
_other("mamba", "MambaConfig", "MambaForCausalLM", _words, hidden_size=64, num_hidden_layers=2, vocab_size=WORDS,
       state_size=8)
_other("mamba2", "Mamba2Config", "Mamba2ForCausalLM", _words, hidden_size=64, num_hidden_layers=2, vocab_size=WORDS,
       state_size=16, num_heads=8, head_dim=16, n_groups=1, chunk_size=16)
_text("rwkv", "RwkvConfig", "RwkvForCausalLM", attention_hidden_size=WIDTH, context_length=LENGTH)
# Encoders.
_text("bert", "BertConfig", "BertForMaskedLM", _masked_words)
_text("roberta", "RobertaConfig", "RobertaForSequenceClassification", _classes)
_text("electra", "ElectraConfig", "ElectraForSequenceClassification", _classes, embedding_size=64)
_text("deberta_v2", "DebertaV2Config", "DebertaV2ForSequenceClassification", _classes, relative_attention=True,
      position_buckets=16, pos_att_type=["p2c", "c2p"])
_other("distilbert", "DistilBertConfig", "DistilBertForMaskedLM", _masked_words, dim=WIDTH, n_layers=LAYERS,
       n_heads=HEADS, hidden_dim=256, vocab_size=WORDS, max_position_embeddings=128)
_text("modernbert", "ModernBertConfig", "ModernBertForMaskedLM", _masked_words, local_attention=16,
      cls_token_id=1, sep_token_id=2)
# Encoders and decoders.
_other("t5", "T5Config", "T5ForConditionalGeneration", _words, d_model=WIDTH, d_kv=32, d_ff=256, num_layers=2,
       num_heads=HEADS, vocab_size=WORDS, decoder_start_token_id=0, pad_token_id=0)
_other("bart", "BartConfig", "BartForConditionalGeneration", _words, d_model=WIDTH, encoder_layers=2,
       decoder_layers=2, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=256,
       decoder_ffn_dim=256, vocab_size=WORDS, max_position_embeddings=128)
# Images.
VISION = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 256,
    "image_size": 64, "patch_size": 8}
_other("vit", "ViTConfig", "ViTForImageClassification", _image, **VISION)
_other("deit", "DeiTConfig", "DeiTForImageClassification", _image, **VISION)
_other("dinov2", "Dinov2Config", "Dinov2ForImageClassification", _image, **VISION)
_other("beit", "BeitConfig", "BeitForImageClassification", _image, **VISION)
_other("swin", "SwinConfig", "SwinForImageClassification", _image, image_size=64, patch_size=4, embed_dim=32,
       depths=[2, 2], num_heads=[2, 4], window_size=4)
_other("convnext", "ConvNextConfig", "ConvNextForImageClassification", _image, hidden_sizes=[32, 64, 96, 128],
       depths=[1, 1, 2, 1])
_other("resnet", "ResNetConfig", "ResNetForImageClassification", _image, embedding_size=32,
       hidden_sizes=[32, 64, 128, 128], depths=[1, 1, 1, 1])
_other("mobilenet_v2", "MobileNetV2Config", "MobileNetV2ForImageClassification", _image, depth_multiplier=0.35)
_other("segformer", "SegformerConfig", "SegformerForSemanticSegmentation", _segments,
       hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], decoder_hidden_size=64)
_other("detr", "DetrConfig", "DetrForObjectDetection", _boxes, use_timm_backbone=False, use_pretrained_backbone=False,
       backbone=None, d_model=64, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=128, decoder_ffn_dim=128,
       encoder_attention_heads=4, decoder_attention_heads=4, num_queries=10, num_labels=2,
       backbone_config={"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 48, 64],
                        "depths": [1, 1, 1, 1], "out_features": ["stage4"]})
_other("deformable_detr", "DeformableDetrConfig", "DeformableDetrForObjectDetection", _boxes,
       use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, d_model=64, encoder_layers=2,
       decoder_layers=2, encoder_ffn_dim=128, decoder_ffn_dim=128, encoder_attention_heads=4,
       decoder_attention_heads=4, num_queries=10, num_labels=2, num_feature_levels=2,
       backbone_config={"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 48, 64],
                        "depths": [1, 1, 1, 1], "out_features": ["stage3", "stage4"]})
# Sound, and pictures with words.
_other("wav2vec2", "Wav2Vec2Config", "Wav2Vec2ForSequenceClassification",
       lambda count=2: {"input_values": torch.randn(count, 4000), "labels": torch.randint(0, 2, (count,))}, hidden_size=64,
       num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, conv_dim=(32, 32, 32),
       conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_feat_extract_layers=3, num_conv_pos_embeddings=16,
       num_conv_pos_embedding_groups=4, classifier_proj_size=32)
_other("whisper", "WhisperConfig", "WhisperForConditionalGeneration",
       lambda count=2: {"input_features": torch.randn(count, 16, 100), "labels": torch.randint(3, WORDS, (count, 12))},
       d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
       encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=WORDS, num_mel_bins=16, max_source_positions=50,
       max_target_positions=32, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
       begin_suppress_tokens=None)
_other("clip", "CLIPConfig", "CLIPModel",
       lambda count=BATCH: {"input_ids": torch.randint(3, WORDS, (count, 16)),
                            "pixel_values": torch.randn(count, 3, 64, 64), "return_loss": True},
       text_config={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
                    "vocab_size": WORDS, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2},
       vision_config={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
                      "image_size": 64, "patch_size": 16},
       projection_dim=32)


def case(name: str) -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
    """The model and its loss on a fixed batch."""
    model, batch, loss = make_case(name)
    return model, lambda model: loss(model, batch)


def make_case(name: str, *count: int) -> tuple[torch.nn.Module, Any, Callable[[Any, Any], torch.Tensor]]:
    """The model, a batch of ``count`` samples, and the loss of one on the other."""
    make, batch_of = CASES[name]
    model = make()
    model.train()
    return model, batch_of(*count), lambda model, batch: model(**batch).loss
