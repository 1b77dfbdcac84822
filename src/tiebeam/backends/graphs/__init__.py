"""What lowering a program means whatever wrote it: for backends that read a graph which a framework made beforehand."""
