torchrun --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 \
  --micro-batch-size 8 --global-batch-size 64 --data-path text \
  --use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce \
  --tensor-model-parallel-size 2
