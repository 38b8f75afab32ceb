torchrun --nproc-per-node 8 train.py --batch 64 --mesh data=4,model=2
