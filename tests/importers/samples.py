"""Texts of the shapes that operators paste, with names and numbers of our own. Each is readable as it stands; fuzzing starts from them."""

from __future__ import annotations

SHELL = (
    "export SGLANG_KV_CANARY_RING_CAPACITY=2048\n"
    "docker run --rm --gpus all org/sglang:v1 python3 -m sglang.launch_server --model-path org/wren-9b --tp 2 \\\n"
    "  --page-size 16 --max-running-requests ${R:-40} --kv-canary log --cuda-graph-bs-decode 1 2 4 8 \\\n"
    "  --json-model-override-args '{\"head_dim\": 96}' --no-such 4 $MORE  # ours\n"
)
COMPOSE = (
    "services:\n  wren:\n    image: org/sglang:v1\n    environment:\n      SGLANG_KV_CANARY_ENABLE_MHA_V: '1'\n    command: >-\n"
    "      python3 -m sglang.launch_server --model-path /m/wren\n      --tp 2 --kv-canary raise\n"
)
POD = (
    '  containers:\n  - name: e\n    command: ["python3", "-m", "sglang.launch_server"]\n    args:\n    - --model-path\n    - /m\n'
    '    - "--tp"\n    - "4"\n    - --page-size=32\n    - --port\n    - $(PORT)\n'
)
RECIPE = (
    "server:\n  model-path: a/b\n  tp-size: 4\n  enable-mixed-chunk: yes\n  cuda-graph-bs-decode: [1, 2, 4]\n"
    "client:\n  max-running-requests: 7\n"
)
PYTHON = (
    'M = "a/b"\nargs = ["--tp", "2", "--model-path", M, f"--page-size={N}"]\nif x:\n    args += ["--kv-canary", "log"]\n'
    'e = sgl.Engine(model_path="m", tp_size=2, mem_fraction_static=0.8, max_running_requests=N)\n'
)
SGLANG_LOG = """\
[2031-02-03 04:05:01] server_args=ServerArgs(model_path='/m/wren', tp_size=2, page_size=16, kv_cache_dtype='auto', max_running_requests=None, \
chunked_prefill_size=4096, speculative_num_draft_tokens=4, kv_canary='log', kv_canary_real_data='partial', kv_canary_sweep_interval=50, \
cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='full', max_bs=24, bs=[1, 2, 4, 8, 16, 24]), \
prefill=PhaseConfig(backend='disabled', max_bs=2048, bs=[])))
[2031-02-03 04:05:09 TP0] Load weight end. elapsed=8.00 s, type=WrenForCausalLM, quant=None, avail mem=61.00 GB, mem usage=17.50 GB.
[2031-02-03 04:05:10 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 250000, K size: 7.63 GB, V size: 7.63 GB
[2031-02-03 04:05:10 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 250000, K size: 7.63 GB, V size: 7.63 GB
[2031-02-03 04:05:10 TP0] Memory pool end. avail mem=12.70 GB
[2031-02-03 04:05:11 TP0] attach_canary_buffers: pool=MHATokenToKVPool attacher=attach_mha read_bytes=16 n_groups=1 kinds=['FULL'] \
kv_token_id_vs_position_offset=0
[2031-02-03 04:05:11 TP0] install_canary: disaggregation_mode=null config=CanaryConfig(mode=<CanaryMode.LOG: 'log'>, ring_capacity=4096, \
sweep_interval=50, real_kv_hash_mode=<RealKvHashMode.PARTIAL: 1>, enable_write_input_assert=False, enable_verify_token_assert=False, \
stats_print_every_n_steps=100) perturb_config=PerturbConfig(req_to_token_prob=0.0) launch_capacities=CanaryLaunchCapacities(\
per_forward_verify_capacity=750000, per_forward_write_req_capacity=2048, per_forward_write_entry_capacity=8192) n_buffer_groups=1 \
buffer_group_kinds=['FULL'] swa_window_size=0 speculative_num_steps=3
[2031-02-03 04:05:20 TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1, 2, 4, 8, 16, 24], avail mem=10.88 GB
[2031-02-03 04:05:25 TP0] Capture target decode CUDA graph end. elapsed=5.26 s, mem usage=0.34 GB, avail mem=10.54 GB.
[2031-02-03 04:05:26] max_total_num_tokens=250000, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=2048, \
context_len=32768, available_gpu_mem=10.54 GB
[2031-02-03 04:05:26] Tree cache initialized: source=default impl=RadixCache hybrid_swa=False
[2031-02-03 04:05:30] The server is fired up and ready to roll!
"""
VLLM_LOG = """\
(EngineCore_DP0 pid=311) INFO 02-03 04:05:06 [core.py:93] Initializing a V1 LLM engine (v0.18.0) with config: model='/m/wren', max_seq_len=16384, \
tensor_parallel_size=2, pipeline_parallel_size=1, kv_cache_dtype=auto, enable_prefix_caching=True
(EngineCore_DP0 pid=311) INFO 02-03 04:05:09 [gpu_model_runner.py:1953] Model loading took 17.5000 GiB and 3.2 seconds
(EngineCore_DP0 pid=311) INFO 02-03 04:05:19 [gpu_worker.py:298] Available KV cache memory: 42.25 GiB
(EngineCore_DP0 pid=311) INFO 02-03 04:05:19 [kv_cache_utils.py:864] GPU KV cache size: 276,864 tokens
(EngineCore_DP0 pid=311) INFO 02-03 04:05:19 [kv_cache_utils.py:868] Maximum concurrency for 16,384 tokens per request: 16.90x
"""
OUT_OF_MEMORY = (
    "[2031-02-03 04:05:20 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=0.90 GB\n"
    "Capturing batches (bs=32 avail_mem=0.21 GB):  80%|\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 39.50 GiB of which 210.00 MiB is "
    "free. Including non-PyTorch memory, this process has 39.20 GiB memory in use.\n"
)
EMPTY_POOL = "ValueError: kv-canary: pool_slot_count must be positive, got 0\n"
SERVER_INFO = (
    '{"model_path": "org/wren-9b", "tp_size": 2, "page_size": 16, "max_running_requests": null, "kv_canary": "log", "status": "ready", '
    '"max_total_num_tokens": 250000, "max_req_input_len": 32762, "version": "0.5.23", "internal_states": [{"last_gen_throughput": 0.0, '
    '"memory_usage": {"weight": 17.5, "kvcache": 15.26, "token_capacity": 250000, "graph": 0.34}, "effective_max_running_requests_per_dp": 48}]}'
)
HF_CONFIG = (
    '{"architectures": ["WrenForCausalLM"], "model_type": "wren", "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16, '
    '"num_key_value_heads": 4, "head_dim": 128, "torch_dtype": "bfloat16", "max_position_embeddings": 32768}'
)
SETTINGS = '{"schema": "kvcanary.settings", "version": 1, "settings": {"pool_slot_count": 4096, "page_size": 16, "mode": "raise"}}'
WEIGHT_INDEX = '{"metadata": {"total_size": 17500000000}, "weight_map": {"a.weight": "model-00001.safetensors"}}'
MARKDOWN = (
    "I can't start it:\n```bash\nsglang serve org/wren --tp 2\n```\n"
    "- `--page-size 16` and `--kv-canary log`\n- also with `--disable-cuda-graph`\n"
)
CONFLICT = "python -m sglang.launch_server \\\n --tp 2 \\\n<<<<<<< a\n --page-size 8\n=======\n --page-size 16\n>>>>>>> b\n"

ALL = (
    SHELL, COMPOSE, POD, RECIPE, PYTHON, SGLANG_LOG, VLLM_LOG, OUT_OF_MEMORY, EMPTY_POOL, SERVER_INFO, HF_CONFIG, SETTINGS, WEIGHT_INDEX, MARKDOWN,
    CONFLICT,
)  # fmt: skip
