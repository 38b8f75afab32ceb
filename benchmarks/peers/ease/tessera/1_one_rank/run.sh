tessera train gpt --data text.txt --batch 64
