mpirun -n 8 tessera train gpt --data text.txt --batch 64 --mesh "data:8" --layout "batch:data" --fsdp data
