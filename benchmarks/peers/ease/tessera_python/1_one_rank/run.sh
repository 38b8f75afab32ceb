python train.py --batch 64
