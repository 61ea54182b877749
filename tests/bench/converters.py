"""converters.py WHAT SOURCE TARGET [MORE] - other programs' conversions, for the benches of reshard.

fp8, mxfp4            transformers: load as bf16 and save
fp8-blocks, compressed    compressed-tensors: convert_checkpoint
gguf                  transformers: load SOURCE/model.gguf as bf16 and save
bf16, q8_0            llama.cpp's convert_hf_to_gguf without a vocabulary; MORE: the folder of its source"""

import pathlib
import sys


def transformers(what, source, target):
    import torch
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config

    how = {"gguf_file": "model.gguf"}
    if what != "gguf":
        form = {"fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config}[what]
        how = {"quantization_config": form(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, **how)
    if what == "gguf":
        model.hf_quantizer = None  # or it does not save
    model.save_pretrained(target)


def compressed_tensors(what, source, target):
    from compressed_tensors.entrypoints import convert as c

    if what == "compressed":
        how = c.CompressedTensorsDequantizer(source)
    else:
        how = c.FP8BlockDequantizer(targets=["re:.*proj$"])
    c.convert_checkpoint(source, target, how, max_workers=2)


def llama_cpp(what, source, target, tree):
    sys.path[:0] = [tree, tree + "/gguf-py"]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from conversion.base import TextModel
    from conversion.llama import LlamaModel

    LlamaModel.set_vocab = TextModel._set_vocab_none
    folder = pathlib.Path(source)
    settings = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    form = getattr(gguf.LlamaFileType, "MOSTLY_" + what.upper())
    kind(folder, form, pathlib.Path(target)).write()


of = dict.fromkeys(("fp8", "mxfp4", "gguf"), transformers)
of.update(dict.fromkeys(("fp8-blocks", "compressed"), compressed_tensors))
of.update(dict.fromkeys(("bf16", "q8_0"), llama_cpp))
of[sys.argv[1]](*sys.argv[1:])
