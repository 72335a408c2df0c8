import numpy as np, csv
from safetensors.numpy import load_file
def test_x(train_tiny, tmp_path):
    def w(n): return load_file(tmp_path/n/"model.safetensors")
    def d(a,b): return max(np.abs(w(a)[k]-w(b)[k]).max() for k in w(a))
    with open(tmp_path/"dev.csv","w") as f: csv.writer(f).writerows([("a dog .","a cat .",3),("a dog .","a man .",2),("a dog .","a song .",1.5)])
    c="training.schedule=constant"
    train_tiny(tmp_path/"a",c,"training.max_steps=2")
    train_tiny(tmp_path/"b",c,"training.max_steps=2",f"data.dev={tmp_path/'dev.csv'}","training.select=last")
    r=train_tiny(tmp_path/"c",c,"training.max_steps=6",f"data.dev={tmp_path/'dev.csv'}","training.select=last")
    ra=train_tiny(tmp_path/"d",c,"training.max_steps=6")
    print(d("a","b"), d("c","d"), r["loss"], ra["loss"])
    r=train_tiny(tmp_path/"e","training.max_steps=60","training.learning_rate=1e-3","simcse.dropout=0.0")
    print([round(x["loss"],3) for x in r["loss"]])
    1/0
