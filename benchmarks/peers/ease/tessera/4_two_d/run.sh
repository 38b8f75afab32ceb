mpirun -n 8 tessera train gpt --data text.txt --batch 64 --mesh "data:4;model:2" --layout "batch:data;heads,ff,vocab:model" --fsdp data
