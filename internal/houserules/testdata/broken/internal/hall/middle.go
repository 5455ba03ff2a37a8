package hall

func (*T[K]) middle() {}
