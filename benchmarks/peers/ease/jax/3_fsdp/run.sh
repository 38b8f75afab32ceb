python train.py --batch 64 --mesh data=8
