"""What every runtime shares that writes text: drawing ids, ids to text, what each row has come to. No torch, no onnxruntime."""
