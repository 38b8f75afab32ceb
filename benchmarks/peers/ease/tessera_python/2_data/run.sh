mpirun -n 8 python train.py --batch 64 --mesh "data:8" --layout "batch:data"
