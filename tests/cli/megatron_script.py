# SPDX-License-Identifier: Apache-2.0
"""Scripts that start Megatron-LM's pretrain_gpt.py, for the tests that read them."""

# A typical script: variables, arrays, arithmetic, a comment, arguments of other programs.
EXPERTS = """#!/bin/bash
# A model of 64 experts.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
TP=4; PP=2
LAYERS=$((4 * 4))
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_port 6000"
MODEL_ARGS=(
    --num-layers $LAYERS          # all of them
    --hidden-size 1024
    --ffn-hidden-size 4096
    --num-attention-heads 16
    --group-query-attention
    --num-query-groups 4
    --kv-channels 64
    --max-position-embeddings 4096
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --qk-layernorm
    --vocab-size 50257
)
MOE_ARGS=(
    --num-experts 64
    --moe-router-topk 8
    --moe-ffn-hidden-size 512
    --moe-layer-freq '([0]*2+[1]*14)'
    --moe-aux-loss-coeff 1e-3
    --moe-grouped-gemm
    --expert-model-parallel-size 8
    --expert-tensor-parallel-size 1
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" ${MOE_ARGS[@]} \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP \\
    --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --bf16 \\
    --micro-batch-size 2 --global-batch-size 256 --seq-length 4096 \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --train-iters 1000 --lr 3.0e-4 --min-lr 3.0e-5 --lr-warmup-iters 100 --hidden-dropout 0.0 \\
    --save /checkpoints/$USER --log-interval 1
"""

# A script whose training torchtitan could run as well.
DENSE = """#!/bin/bash
torchrun --nnodes 1 --nproc-per-node 4 pretrain_gpt.py \\
    --num-layers 4 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 --vocab-size 512 \\
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \\
    --untie-embeddings-and-output-weights --max-position-embeddings 128 --seq-length 64 \\
    --tensor-model-parallel-size 2 --sequence-parallel --overlap-grad-reduce \\
    --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-3 --hidden-dropout 0
"""
