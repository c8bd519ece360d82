"""A real transformer, all-MiniLM-L6-v2, with every linear layer an FP8 product: what `kingpost demo` runs.

bert.py      the encoder in numpy; it asks for each product by the weight's name
products.py  the two answers: float32, and FP8 by kingpost
files.py     config, weights and tokenizer from a folder
weakened.py  a kernel with one fence less, and what the checker says
show.py      the run as a person sees it
"""
