"""edgekv: vision-language models over endless video, inside a fixed memory budget."""
