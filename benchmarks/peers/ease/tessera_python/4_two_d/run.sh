mpirun -n 8 python train.py --batch 64 --mesh "data:4;model:2" --layout "batch:data;heads,ff,vocab:model;@params d_model:data"
